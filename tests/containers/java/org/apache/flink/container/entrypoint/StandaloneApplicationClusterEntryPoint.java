package org.apache.flink.container.entrypoint;

import java.io.File;
import java.util.ArrayList;
import java.util.List;

import org.apache.flink.client.deployment.application.ApplicationClusterEntryPoint;
import org.apache.flink.client.program.DefaultPackagedProgramRetriever;
import org.apache.flink.client.program.PackagedProgram;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.runtime.entrypoint.ClusterEntrypoint;
import org.apache.flink.runtime.entrypoint.ClusterEntrypointUtils;
import org.apache.flink.runtime.resourcemanager.StandaloneResourceManagerFactory;

/**
 * Stands in for the class of this name, which Flink's images have and Maven's central repository has not: a cluster of its own for one job,
 * the only kind that may run in reactive mode. {@code --configDir DIR [-D key=value]... --job-classname CLASS [arguments of the job]}.
 */
public final class StandaloneApplicationClusterEntryPoint extends ApplicationClusterEntryPoint {

    private StandaloneApplicationClusterEntryPoint(Configuration configuration, PackagedProgram program) {
        super(configuration, program, StandaloneResourceManagerFactory.getInstance());
    }

    @Override
    protected boolean supportsReactiveMode() {
        return true;
    }

    public static void main(String[] args) throws Exception {
        String folder = null;
        String job = null;
        Configuration set = new Configuration();
        List<String> rest = new ArrayList<>();
        for (int i = 0; i < args.length; i++) {
            if (args[i].equals("--configDir") || args[i].equals("-c")) {
                folder = args[++i];
            } else if (args[i].equals("--job-classname") || args[i].equals("-j")) {
                job = args[++i];
            } else if (args[i].startsWith("-D")) {
                String option = args[i].length() > 2 ? args[i].substring(2) : args[++i];
                int end = option.indexOf('=');
                set.setString(option.substring(0, end), option.substring(end + 1));
            } else {
                rest.add(args[i]);
            }
        }
        Configuration configuration = GlobalConfiguration.loadConfiguration(folder, set);
        File jars = ClusterEntrypointUtils.tryFindUserLibDirectory().orElse(null);
        PackagedProgram program =
                DefaultPackagedProgramRetriever.create(jars, job, rest.toArray(new String[0]), configuration).getPackagedProgram();
        configureExecution(configuration, program);
        ClusterEntrypoint.runClusterEntrypoint(new StandaloneApplicationClusterEntryPoint(configuration, program));
    }
}

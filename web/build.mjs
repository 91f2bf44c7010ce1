// Builds the page into the package of the knowledge service, which serves it. The same sources give the same bytes.
import { copyFile, mkdir } from "node:fs/promises";
import { build } from "esbuild";

const place = process.env.WEIR_PAGE_OUT || "../services/knowledge/weir_knowledge/bundle";

await mkdir(place, { recursive: true });
await build({
  entryPoints: { page: "src/main.jsx" },
  bundle: true,
  charset: "utf8",
  format: "iife",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "inline",
  logLevel: "warning",
  minify: true,
  outdir: place,
  target: ["es2022"],
});
for (const name of ["index.html", "icon.svg"]) await copyFile(`src/${name}`, `${place}/${name}`);

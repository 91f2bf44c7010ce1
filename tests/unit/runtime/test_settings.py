"""Settings: a wrong one ends the program with a line that names it; none contains a secret."""

import json
from pathlib import Path

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from weir_runtime.settings import EXIT_BAD_SETTINGS, ServiceSettings, load, table

TOKEN = "correct-horse-battery"  # noqa: S105 - a story's
TOKENS = json.dumps({TOKEN: {"name": "ada", "role": "write"}})


class Settings(ServiceSettings):
    """The oven bakes."""

    model_config = SettingsConfigDict(env_prefix="WEIR_OVEN_", frozen=True, extra="ignore", populate_by_name=True)

    heat_seconds: float = Field(default=30.0, gt=0, le=600, description="how long it heats up, in seconds")
    redis_url: str = Field(default="redis://ada:hunter2@127.0.0.1/0", description="where the store is")
    door_password: SecretStr | None = Field(default=None, min_length=8, description="opens it")
    recipe: str = Field(default="bread", pattern="^[a-z]+$", description="what it bakes")
    racks: dict[str, int] = Field(default_factory=dict, description="what lies on which, as JSON")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing of the machine's own."""
    import os

    for name in list(os.environ):
        if name.startswith("WEIR_"):
            monkeypatch.delenv(name)
    return monkeypatch


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        load(Settings, arguments)
    assert ended.value.code == EXIT_BAD_SETTINGS
    return capsys.readouterr().err


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        load(Settings, arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_defaults_are_a_safe_start() -> None:
    """Loopback, four partitions, no tokens."""
    settings = load(Settings)
    assert (settings.http_host, settings.partitions, settings.heat_seconds) == ("127.0.0.1", 4, 30.0)
    assert not settings.callers().required


def test_own_and_shared_variables(environment: pytest.MonkeyPatch) -> None:
    """A service's own carry its name, the shared ones do not; an empty one counts as not set."""
    environment.setenv("WEIR_OVEN_HEAT_SECONDS", "5")
    environment.setenv("WEIR_KAFKA_BOOTSTRAP_SERVERS", "a:1,b:2")
    environment.setenv("WEIR_TOKENS_FILE", "")
    settings = load(Settings)
    assert (settings.heat_seconds, settings.kafka_bootstrap_servers, settings.tokens_file) == (5.0, "a:1,b:2", None)


@pytest.mark.parametrize(
    ("variable", "value", "output"),
    [
        ("WEIR_OVEN_HEAT_SECONDS", "soon", "WEIR_OVEN_HEAT_SECONDS: must be a number"),
        ("WEIR_OVEN_HEAT_SECONDS", "0", "WEIR_OVEN_HEAT_SECONDS: must be greater than 0 (is '0')"),
        ("WEIR_REPLICATION_FACTOR", "0", "WEIR_REPLICATION_FACTOR: must be greater than or equal to 1 (is '0')"),
        ("WEIR_MIN_INSYNC_REPLICAS", "2", "WEIR_MIN_INSYNC_REPLICAS: 2 needs WEIR_REPLICATION_FACTOR=2 or more"),
        ("WEIR_PARTITIONS", "0", "WEIR_PARTITIONS: must be greater than or equal to 1 (is '0')"),
        ("WEIR_HTTP_PORT", "70000", "WEIR_HTTP_PORT: "),
        ("WEIR_KAFKA_BOOTSTRAP_SERVERS", "kafka", "WEIR_KAFKA_BOOTSTRAP_SERVERS: "),
        (
            "WEIR_KAFKA_BOOTSTRAP_SERVERS",
            "kafka:99999",
            "WEIR_KAFKA_BOOTSTRAP_SERVERS: the port of kafka:99999 must be",
        ),
        ("WEIR_KAFKA_BOOTSTRAP_SERVERS", "a:1,b:0", "WEIR_KAFKA_BOOTSTRAP_SERVERS: the port of b:0 must be"),
        ("WEIR_OVEN_RACKS", "hunter2", "WEIR_OVEN_RACKS: must be JSON (Expecting value"),
        ("WEIR_KNOWLEDGE_URL", "ftp://x", "WEIR_KNOWLEDGE_URL: "),
        ("WEIR_LOG_LEVEL", "LOUD", "WEIR_LOG_LEVEL: "),
        ("WEIR_OVEN_RECIPE", "Nr 5", "WEIR_OVEN_RECIPE: "),
    ],
)
def test_a_wrong_setting_is_named(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str, output: str
) -> None:
    """With what is wrong and what it is, and exit code 2."""
    environment.setenv(variable, value)
    assert output in refused(capsys)


def test_all_wrong_settings_are_named_at_once(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All are listed, not one per start."""
    environment.setenv("WEIR_PARTITIONS", "0")
    environment.setenv("WEIR_OVEN_HEAT_SECONDS", "-1")
    assert len(refused(capsys).splitlines()) == 2


def test_an_error_has_no_secret(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a password nor the credentials in a URL."""
    environment.setenv("WEIR_OVEN_DOOR_PASSWORD", "hunter2")
    environment.setenv("WEIR_KNOWLEDGE_URL", "http://ada:hunter2@knowledge")
    output = refused(capsys)
    assert "WEIR_OVEN_DOOR_PASSWORD" in output
    assert "WEIR_KNOWLEDGE_URL" in output
    assert "hunter2" not in output


def test_the_description_has_no_secret(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--print-settings` and the line at start can go into any log."""
    environment.setenv("WEIR_OVEN_DOOR_PASSWORD", "hunter2hunter2")
    environment.setenv("WEIR_TOKENS", TOKENS)
    environment.setenv("WEIR_KNOWLEDGE_TOKEN", TOKEN)
    output = printed(capsys, "--print-settings")
    assert "hunter2" not in output
    assert TOKEN not in output
    values = json.loads(output)
    assert (
        values["WEIR_OVEN_REDIS_URL"]["value"] == values["WEIR_OVEN_REDIS_URL"]["default"] == "redis://***@127.0.0.1/0"
    )
    assert values["WEIR_OVEN_DOOR_PASSWORD"] == {"value": "***", "default": None, "meaning": "opens it"}
    assert values["WEIR_OVEN_HEAT_SECONDS"]["value"] == 30.0
    assert values["WEIR_HTTP_HOST"] == {
        "value": "127.0.0.1",
        "default": "127.0.0.1",
        "meaning": "address to listen on; any but loopback requires tokens",
    }


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """With meaning and default; an empty default is none."""
    output = printed(capsys, "--help")
    assert output.startswith("The oven bakes.")
    assert "refused (not set)" in output and "(default )" not in output
    for field in Settings.model_fields:
        assert field.upper() in output


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings come from the environment; an argument must not seem to count."""
    assert "unknown option --port" in refused(capsys, "--port", "9")
    assert "unknown option 9090" in refused(capsys, "9090")


def test_a_misspelt_variable_is_pointed_out(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would otherwise silently be the default. Other services' variables are ignored."""
    environment.setenv("WEIR_OVEN_HEAT_SECOND", "5")
    environment.setenv("WEIR_FRIDGE_COLD", "1")
    load(Settings)
    assert capsys.readouterr().err == (
        "settings: WEIR_OVEN_HEAT_SECOND is unknown and ignored; --help lists the settings\n"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "weir.example"])
def test_an_open_listener_needs_tokens(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, host: str
) -> None:
    """A listener for other machines needs tokens."""
    environment.setenv("WEIR_HTTP_HOST", host)
    assert f"WEIR_HTTP_HOST: {host} can be reached from outside" in refused(capsys)
    path = tmp_path / "tokens.json"
    path.write_text(TOKENS)
    environment.setenv("WEIR_TOKENS_FILE", str(path))
    assert load(Settings).callers().required


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(environment: pytest.MonkeyPatch, host: str) -> None:
    """A developer's machine."""
    environment.setenv("WEIR_HTTP_HOST", host)
    assert load(Settings).http_host == host


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "must map at least one token"),
        ("{}", "must map at least one token"),
        ('{"short": {"name": "ada", "role": "read"}}', "entry 1"),
        (f'{{"{TOKEN}": {{"name": "ada", "role": "admin"}}}}', "entry 1"),
        (f'{{"{TOKEN}": {{"name": "", "role": "read"}}}}', "entry 1"),
        (f'{{"{TOKEN}": {{"name": "{"x" * 201}", "role": "write"}}}}', "a name of at most 200"),
        (f'{{"{TOKEN}": {{"name": "half a \\ud800 character", "role": "write"}}}}', "is not JSON"),
        (f'{{"{TOKEN}\\ud800": {{"name": "ada", "role": "write"}}}}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (f'{{"{TOKEN}": "ada"}}', "entry 1"),
    ],
)
def test_a_bad_tokens_file_is_an_error_at_start(
    environment: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: str | None,
    output: str,
) -> None:
    """It names the setting and the entry, never the token."""
    path = tmp_path / "tokens.json"
    if content is not None:
        path.write_text(content)
    environment.setenv("WEIR_TOKENS_FILE", str(path))
    error = refused(capsys)
    assert error.startswith("settings: WEIR_TOKENS_FILE: ")
    assert output in error
    assert TOKEN not in error


def test_tokens_from_file_and_environment_add_up(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The operator's in the file, one more from the environment."""
    path = tmp_path / "tokens.json"
    path.write_text(TOKENS)
    environment.setenv("WEIR_TOKENS_FILE", str(path))
    environment.setenv("WEIR_TOKENS", '{"another-long-token": {"name": "bob", "role": "read"}}')
    tokens = load(Settings).callers()
    ada, bob = tokens.caller(TOKEN), tokens.caller("another-long-token")
    assert ada is not None and (ada.name, ada.roles) == ("ada", {"write"})
    assert bob is not None and (bob.name, bob.roles) == ("bob", {"read"})
    assert tokens.caller("somebody-elses-token") is None


def test_the_readmes_table() -> None:
    """A service's README lists its own settings; the shared ones on demand."""
    own = table(Settings, own_only=True).splitlines()
    assert own[:3] == [
        "| variable | default | meaning |",
        "|---|---|---|",
        "| `WEIR_OVEN_HEAT_SECONDS` | `30.0` | how long it heats up, in seconds |",
    ]
    assert "| `WEIR_OVEN_DOOR_PASSWORD` |  | opens it |" in own
    assert "hunter2" not in table(Settings)
    assert "WEIR_PARTITIONS" in table(Settings)


def test_secrets_may_be_files(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Named as the settings, as containers get them; a value from the environment goes first, and none is printed."""
    (tmp_path / "WEIR_TOKENS").write_text(TOKENS + "\n")
    (tmp_path / "WEIR_KNOWLEDGE_TOKEN").write_text(TOKEN + "\n")
    (tmp_path / "WEIR_OVEN_DOOR_PASSWORD").write_text("from the file")
    (tmp_path / "somebody-elses").write_text("?")
    environment.setenv("WEIR_SECRETS_FOLDER", str(tmp_path))
    environment.setenv("WEIR_HTTP_HOST", "0.0.0.0")
    environment.setenv("WEIR_OVEN_DOOR_PASSWORD", "from the environment")
    settings = load(Settings)
    assert settings.callers().caller(TOKEN) is not None
    assert settings.knowledge_token is not None
    assert settings.knowledge_token.get_secret_value() == TOKEN
    assert settings.door_password is not None
    assert settings.door_password.get_secret_value() == "from the environment"
    assert TOKEN not in printed(capsys, "--print-settings")


def test_a_folder_of_secrets_that_is_not_there_is_an_error(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A volume that was forgotten would otherwise be a service without tokens."""
    environment.setenv("WEIR_SECRETS_FOLDER", str(tmp_path / "none"))
    assert refused(capsys) == f"settings: WEIR_SECRETS_FOLDER: {tmp_path / 'none'} is no folder\n"

"""Settings: which source wins, and what is said about a bad value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from postroom.errors import InvalidSetting
from postroom.settings import ENVIRONMENT, MEGABYTE, Settings, SettingsOverrides, _warn_of

SECRET = "s3cr3t"  # noqa: S105 - what must not be in an error


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for variable in list(os.environ):
        if variable.startswith(("POSTROOM_", "OUTBOX_", "BROKER_", "INBOX_", "IDEMPOTENCY_")):
            monkeypatch.delenv(variable)
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")


def test_the_defaults() -> None:
    settings = Settings.load()
    assert (settings.database, settings.schema, settings.table_prefix) == (None, None, None)
    assert settings.max_payload_bytes == MEGABYTE == 1_048_576


def test_code_may_give_every_setting_by_name_with_the_same_type() -> None:
    settings, overrides = get_type_hints(Settings), get_type_hints(SettingsOverrides)
    named_by_callers = {"database", "broker", "brokers", "batch"}
    assert set(settings) == {*overrides, *named_by_callers}
    for name in set(overrides) - {"routes", "backoff_sec"}:  # of which any mapping and any sequence will do
        assert overrides[name] == settings[name] | None


VALUES = {
    "brokers": ("a=stdout:", {"a": "stdout:"}, "b=stdout:"),
    "routes": ("A=a", {"A": "a"}, "B=b"),
    "backoff_sec": ("1, 2", (1.0, 2.0), "3"),
    "order": ("skip", "skip", "hold"),
    "log_level": ("error", "error", "debug"),
    "log_format": ("json", "json", "text"),
    "cleanup_load": ("0.7", 0.7, "0.8"),
    "cdc_max_wal_bytes": ("2000000", 2_000_000, "3000000"),
}
"""Of settings that are neither whole numbers nor flags: a text, what it means, and another text."""


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_R_1_every_setting_has_a_variable_of_ours_which_wins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default = getattr(Settings(), name)
    is_flag = isinstance(default, bool) or name == "tracebacks"
    words = ("true", True, "false") if is_flag else ("7", "7" if _is_text(name) else 7, "8")
    text, value, other = VALUES.get(name, words)
    ours, *others = ENVIRONMENT[name]
    assert ours == f"POSTROOM_{name.upper()}"
    for variable in others:
        monkeypatch.setenv(variable, other)
        assert getattr(Settings.load(), name) != value
    monkeypatch.setenv(ours, text)
    assert getattr(Settings.load(), name) == value
    guide = (Path(__file__).parents[2] / "docs/guide/settings.md").read_text(encoding="utf-8")
    assert f"| `{name}` | {', '.join(f'`{variable}`' for variable in ENVIRONMENT[name])} |" in guide


def _is_text(name: str) -> bool:
    return name in {
        *("database", "schema", "table_prefix", "broker", "default_topic", "http_host"),
        *("dashboard_token", "trace_link"),
    }


def test_R_1_the_documents_names_are_known() -> None:
    named = {variable for variables in ENVIRONMENT.values() for variable in variables}
    relay = ["ENABLED", "CONCURRENCY", "BATCH", "POLL_INTERVAL_SEC", "LOCK_LEASE_SEC", "MAX_ATTEMPTS", "BACKOFF_SEC"]
    assert {*(f"OUTBOX_{name}" for name in relay), "BROKER_TIMEOUT_MS"} <= named


def test_R_1_of_two_variables_ours_counts_also_where_it_names_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "batch", "7\n")
    monkeypatch.setenv("OUTBOX_BATCH", "8")
    monkeypatch.setenv("POSTROOM_BATCH_FILE", str(folder / "batch"))
    assert Settings.load().batch == 7
    monkeypatch.setenv("OUTBOX_BATCH", "many")
    with pytest.raises(InvalidSetting, match="environment variable OUTBOX_BATCH: batch = 'many'"):
        Settings.load()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("POSTROOM_BATSH", "did you mean POSTROOM_BATCH?"),
        ("POSTROOM_OUTBOX_BATCH", "did you mean POSTROOM_BATCH?"),
        ("POSTROOM_DATABASE_URL", "did you mean POSTROOM_DATABASE?"),
        ("POSTROOM_DATABSE_FILE", "did you mean POSTROOM_DATABASE?"),
        ("POSTROOM_ZZZZZZ", "settings are POSTROOM_ and a name of"),
    ],
)
def test_R_1_a_variable_that_is_no_setting_is_warned_of_once(
    variable: str, hint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of.cache_clear()
    monkeypatch.setenv(variable, SECRET)
    for _ in range(2):
        Settings.load()
    [warning] = caplog.messages
    assert warning.startswith(f"environment variable {variable} is not a setting: {hint}")
    assert SECRET not in warning


def test_what_others_put_into_the_environment_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in (
        *("POSTROOM_SERVICE_HOST", "POSTROOM_SERVICE_PORT_HTTP", "POSTROOM_PORT", "POSTROOM_PORT_80_TCP_ADDR"),
        *("POSTROOM_RELAY_SERVICE_HOST", "POSTROOM_RELAY_PORT_80_TCP", "POSTROOM_SUPERVISED", "OUTBOX_OF_ANOTHER"),
        *("POSTROOM_HTTP_SERVICE_PORT", "POSTROOM_HTTP_PORT"),  # of a service with the name postroom-http
    ):
        monkeypatch.setenv(variable, "tcp://10.0.0.1:80")
    assert Settings.load().http_port is None
    assert not caplog.messages


def test_R_1_argument_then_environment_then_files_then_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.load().schema is None
    write(folder, "pyproject.toml", '[tool.postroom]\nschema = "from_pyproject"\ntable-prefix = "p_"')
    assert Settings.load().schema == "from_pyproject"
    write(folder, "postroom.toml", 'schema = "from_postroom_toml"\nmax-payload-bytes = 5')
    assert Settings.load().schema == "from_postroom_toml"
    monkeypatch.setenv("POSTROOM_SCHEMA", "from_environment")
    assert Settings.load().schema == "from_environment"
    assert Settings.load(schema="from_argument").schema == "from_argument"
    assert Settings.load(schema=None).schema == "from_environment"
    settings = Settings.load(schema="from_argument")
    assert (settings.table_prefix, settings.max_payload_bytes) == ("p_", 5)


def test_R_1_a_value_may_be_in_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "secret", f"postgresql://user:{SECRET}@host/name\n")
    monkeypatch.setenv("POSTROOM_DATABASE_FILE", str(folder / "secret"))
    assert Settings.load().database == f"postgresql://user:{SECRET}@host/name"
    monkeypatch.setenv("POSTROOM_DATABASE", "sqlite:///other.db")
    assert Settings.load().database == "sqlite:///other.db"


def test_numbers_from_the_environment_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_MAX_PAYLOAD_BYTES", "2048")
    assert Settings.load().max_payload_bytes == 2048


def test_an_empty_table_prefix_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_TABLE_PREFIX", "")
    assert Settings.load().table_prefix == ""


@pytest.mark.parametrize("value", ["many", "", "1.5", "0", "-1"])
def test_R_1_a_bad_value_names_its_source_and_itself(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_MAX_PAYLOAD_BYTES", value)
    problem = f"environment variable POSTROOM_MAX_PAYLOAD_BYTES: max_payload_bytes = '{value}' is not valid: Expected"
    with pytest.raises(InvalidSetting, match=problem):
        Settings.load()


@pytest.mark.parametrize(
    ("variable", "said"),
    [("OUTBOX_ORDER", "order = 'maybe' is not valid: use hold or skip"), ("OUTBOX_ENABLED", "use true or false")],
)
def test_a_value_that_is_none_of_a_few_is_told_them(variable: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "maybe")
    with pytest.raises(InvalidSetting, match=said):
        Settings.load()


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True, [1]])
def test_a_bad_argument_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"an argument: max_payload_bytes = .* is not valid"):
        Settings.load(max_payload_bytes=value)


def test_a_bad_value_is_refused_even_where_a_stronger_source_has_a_good_one(folder: Path) -> None:
    write(folder, "postroom.toml", "max_payload_bytes = 0")
    with pytest.raises(InvalidSetting, match=r"postroom\.toml: max_payload_bytes = 0 is not valid"):
        Settings.load(max_payload_bytes=1)


def test_R_1_the_databases_value_is_not_shown(folder: Path) -> None:
    write(folder, "postroom.toml", f'database = ["{SECRET}"]')
    with pytest.raises(InvalidSetting, match=r"database = \(hidden\) is not valid: Expected `str") as refused:
        Settings.load()
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        (
            "postroom.toml",
            "databse = 'x'",
            r"postroom\.toml: there is no setting 'databse'; did you mean 'database'\?",
        ),
        (
            "postroom.toml",
            "[tool.postroom]",
            r"postroom\.toml: there is no setting 'tool'; known are database, schema",
        ),
        (
            "pyproject.toml",
            "[tool.postroom]\nbatsh = 1",
            r"pyproject\.toml \[tool\.postroom\]: there is no setting 'batsh'",
        ),
        ("postroom.toml", "database = nothing", r"postroom\.toml cannot be read: .*line 1"),
        ("pyproject.toml", "[tool.postroom", r"pyproject\.toml cannot be read"),
        ("pyproject.toml", "[tool]\npostroom = 'x'", r"pyproject\.toml \[tool\.postroom\] is not a table"),
    ],
)
def test_R_1_a_bad_file_is_named(folder: Path, name: str, text: str, source: str) -> None:
    write(folder, name, text)
    with pytest.raises(InvalidSetting, match=source):
        Settings.load()


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="an argument: there is no setting 'shema'"):
        Settings.load(shema="x")


def test_other_tools_settings_are_none_of_ours(folder: Path) -> None:
    write(folder, "pyproject.toml", "[tool.ruff]\nline-length = 120\n[project]\nname = 'x'")
    assert Settings.load() == Settings()
    write(folder, "pyproject.toml", "tool = 'x'")
    assert Settings.load() == Settings()


@pytest.mark.parametrize("name", ["postroom.toml", "pyproject.toml"])
def test_a_file_that_is_no_text_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSetting, match="cannot be read: it is not text in UTF-8"):
        Settings.load()


def test_a_secrets_file_that_is_missing_or_no_text_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE_FILE", str(folder / "missing"))
    with pytest.raises(InvalidSetting, match=r"POSTROOM_DATABASE_FILE: .*missing cannot be read: No such file"):
        Settings.load()
    (folder / "binary").write_bytes(SECRET.encode() + b"\xff")
    monkeypatch.setenv("POSTROOM_DATABASE_FILE", str(folder / "binary"))
    with pytest.raises(InvalidSetting, match="binary cannot be read: it is not text in UTF-8") as refused:
        Settings.load()
    assert SECRET not in str(refused.value)


class TestBrokers:
    WANTED = {"payments.*": "kafka://a:9092,b:9092?acks=all", "audit": "stdout:"}  # noqa: RUF012 - never changed

    @pytest.mark.parametrize(
        "text",
        [
            "payments.*=kafka://a:9092,b:9092?acks=all audit=stdout:",
            "\n  payments.*=kafka://a:9092,b:9092?acks=all\n  audit=stdout:\n",
            '{"payments.*": "kafka://a:9092,b:9092?acks=all", "audit": "stdout:"}',
        ],
    )
    def test_a_variable_holds_them_as_words_or_as_json(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSTROOM_BROKERS", text)
        assert Settings.load().brokers == self.WANTED

    def test_a_file_holds_them_as_a_table(self, folder: Path) -> None:
        lines = "\n".join(f'"{pattern}" = "{url}"' for pattern, url in self.WANTED.items())
        write(folder, "postroom.toml", f"[brokers]\n{lines}\n")
        assert Settings.load().brokers == self.WANTED

    def test_none_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Settings.load().brokers == {}
        monkeypatch.setenv("POSTROOM_BROKERS", "a=stdout:")
        assert Settings.load(brokers={}).brokers == {}

    @pytest.mark.parametrize(
        "text", [f"kafka://u:{SECRET}@host", f"a=stdout: b={SECRET} c=", f'{{"a": "{SECRET}"', f'{{"a": ["{SECRET}"]}}']
    )
    def test_what_is_no_table_is_refused_and_not_shown(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSTROOM_BROKERS", text)
        with pytest.raises(InvalidSetting, match=r"POSTROOM_BROKERS.*PATTERN=URL") as refused:
            Settings.load()
        assert SECRET not in str(refused.value)


class TestHttp:
    def test_V_4_there_is_no_port_unless_one_is_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert (Settings.load().http_port, Settings.load().http_host) == (None, "127.0.0.1")
        monkeypatch.setenv("OUTBOX_HTTP_PORT", "9090")
        monkeypatch.setenv("OUTBOX_HTTP_HOST", "0.0.0.0")  # noqa: S104 - nothing listens here
        assert (Settings.load().http_port, Settings.load().http_host) == (9090, "0.0.0.0")  # noqa: S104 - as above

    @pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
    def test_R_1_a_port_that_is_none_is_refused(self, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
        monkeypatch.setenv("OUTBOX_HTTP_PORT", port)
        with pytest.raises(InvalidSetting, match=f"variable OUTBOX_HTTP_PORT: http_port = '{port}' is not valid"):
            Settings.load()

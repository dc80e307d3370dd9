"""Finding a store, making one, and looking at it as a whole."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request

import pytest

import penstock
from penstock import Penstock
from penstock.backends.base import HealthNumbers
from tests.cli.calling import Cli, command


def test_init_makes_a_store_and_its_queues(bare: Cli) -> None:
    shown = bare("init", "--queue", "emails", "-q", "jobs").out
    assert shown == f"store {bare.store} created; queues created: emails, jobs\n"
    assert bare.through_api(lambda ps: [queue.name for queue in ps.queues()]) == ["emails", "jobs"]


def test_init_leaves_a_store_that_is_there_as_it_is(cli: Cli) -> None:
    answer = cli("init", "-q", "emails", "-q", "more", "--json").object
    assert answer == {"store": str(cli.store), "created": False, "queues_created": ["more"]}
    assert "is there already" in cli("init").out


def test_a_command_never_makes_a_store(bare: Cli) -> None:
    answer = bare("stats", code=3)
    assert answer.err == (
        f"penstock: there is no store in {bare.store}; create it: penstock init --store {bare.store}\n"
    )
    assert not bare.store.exists()


def test_a_folder_that_holds_other_things_is_not_a_store(bare: Cli) -> None:
    bare.store.mkdir()
    (bare.store / "letter.txt").write_text("dear all")
    bare("queues", "list", code=3)
    assert [path.name for path in bare.store.iterdir()] == ["letter.txt"]


def test_the_store_is_found_by_option_then_variable_then_file_then_folder(
    bare: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("option", "variable", "file", "penstock-data"):
        with penstock.open(bare.folder / name) as ps:
            ps.create_queue(f"q-{name}")

    def found(*arguments: str) -> list[str]:
        return [queue["name"] for queue in bare("queues", "list", "--json", *arguments).objects]

    assert found() == ["q-penstock-data"]
    (bare.folder / "penstock.yaml").write_text("storage: {path: file}")
    assert found() == ["q-file"]
    monkeypatch.setenv("PENSTOCK_STORE", "rocksdb:./variable")
    assert found() == ["q-variable"]
    assert found("--store", "option") == ["q-option"]
    assert [q["name"] for q in bare("--store", "option", "--json", "queues", "list").objects] == ["q-option"]
    monkeypatch.setenv("PENSTOCK_STORE", "")
    assert found() == ["q-file"]


def test_info_shows_engine_place_and_what_it_can(cli: Cli) -> None:
    shown = cli("info").out
    assert f"Penstock {penstock.__version__}" in shown
    assert str(cli.store) in shown
    assert "atomic_ack" in shown
    found = cli("info", "--json").object
    assert found["version"] == penstock.__version__
    (backend,) = found["backends"]
    assert (backend["name"], backend["engine"], backend["durability"]) == ("default", "rocksdb", "os")
    assert backend["capabilities"]["fifo"] is True


def test_health_is_an_exit_code(cli: Cli) -> None:
    shown = cli("health").out
    assert shown.startswith("status  healthy\n\nBACKEND  STATUS ")
    assert re.search(r"(?m)^default  healthy .* 0\.0% +0 +0 ", shown)
    found = cli("health", "--json").object
    numbers = found["backends"].pop("default")
    assert found == {"status": "healthy", "reasons": {}, "warnings": {}, "backends": {}}
    assert (numbers["status"], numbers["reachable"], numbers["depth"]) == ("healthy", True, 0)
    assert set(numbers) == {"status", *HealthNumbers.__struct_fields__}

    def hold_back(ps: Penstock) -> None:
        queue = ps.queue("emails")
        queue.cursor("archive", required=True)
        queue.enqueue(b"")
        queue.ack([queue.lease()[0].receipt])

    cli.through_api(hold_back)
    answer = cli("health", code=1)
    assert "degraded" in answer.out
    assert "hold back 1 bodies" in answer.out
    assert cli("health", "--json", code=1).object["reasons"]["default"]


def test_health_of_a_store_that_has_stopped_is_3(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.penstock import Health

    monkeypatch.setattr(Penstock, "health", lambda self: Health("unhealthy", {"default": ["it stopped"]}))
    assert "it stopped" in cli("health", code=3).out


def test_stats_of_all_queues_and_of_one(cli: Cli) -> None:
    cli("enqueue", "emails", "hello")
    cli("enqueue", "emails", "later", "--delay", "1h")
    header, line = cli("stats").lines
    assert header.split()[:6] == ["QUEUE", "READY", "DELAYED", "LEASED", "DEAD", "DONE"]
    assert line.split()[:6] == ["emails", "1", "1", "0", "0", "0"]
    found = cli("stats", "--json").object
    assert (found["queue"], found["ready"], found["delayed"], found["durability"]) == ("emails", 1, 1, "os")
    assert "events 1 to 2" in cli("stats", "emails").out
    assert cli("stats", "emails", "--json").object["last_seq"] == 2


def test_stats_of_a_store_without_queues_says_what_to_do(bare: Cli) -> None:
    bare("init")
    answer = bare("stats")
    assert (answer.out, answer.err) == ("", "no queues yet; create one: penstock queues create NAME\n")
    assert bare("stats", "--json").raw == b""


def test_config_check_explains_where_each_value_comes_from(
    bare: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare.folder / "penstock.yaml").write_text(
        "storage: {path: ./here, interval_ms: 20}\nqueues: {emails: {lease_s: 60}}\n"
    )
    monkeypatch.setenv("PENSTOCK_STORAGE_DURABILITY", "os")
    found = bare("config", "check", "--json").object
    settings = {item["key"]: (item["value"], item["origin"], item["detail"]) for item in found["settings"]}
    assert settings["storage.path"] == (str(bare.folder / "here"), "file", "penstock.yaml")
    assert settings["storage.durability"] == ("os", "environment", "PENSTOCK_STORAGE_DURABILITY")
    assert settings["storage.engine"] == ("rocksdb", "default", "")
    assert settings["queues.emails.lease_s"] == (60.0, "file", "penstock.yaml")
    shown = bare("config", "check").lines
    assert shown[-1] == "penstock.yaml can be used; queues that it declares: 1"
    assert not (bare.folder / "here").exists()


def test_config_show_is_one_key_a_line(cli: Cli) -> None:
    found = cli("config", "show", "--json").objects
    assert {
        "key": "storage.path",
        "value": str(cli.store),
        "origin": "folder",
        "detail": "penstock-data",
    } in found
    assert "storage.durability" in cli("config", "show").out


def test_a_configuration_that_cannot_be_used_is_named_and_is_2(bare: Cli) -> None:
    (bare.folder / "bad.yaml").write_text("storage: {durabilty: os}")
    answer = bare("config", "check", "bad.yaml", code=2)
    assert answer.err.startswith("penstock: bad.yaml: storage.durabilty is not known; accepted: engine, path")
    (bare.folder / "far.yaml").write_text('backends: {far: {url: "gopher://x"}}')
    answer = bare("config", "check", "far.yaml", code=2)
    assert answer.err.startswith("penstock: far.yaml: backends.far: backend 'gopher' is not known; known:")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("queues: {b: {dead_letter: nope}}", 2, "bad.yaml: queues.b.dead_letter is 'nope', which is not"),
        ("storage: {encryption: {enabled: true}}", 3, "needs the key 'main', which is not there; set PENST"),
        ("storage: {encryption: {enabled: true, key_file: none}}", 3, "No such file or directory"),
    ],
)
def test_what_no_command_could_use_is_refused_and_leaves_no_store(
    text: str, code: int, said: str, bare: Cli
) -> None:
    (bare.folder / "bad.yaml").write_text(text)
    for words in (["config", "check", "bad.yaml"], ["init", "--store", "bad.yaml"]):
        answer = bare(*words, code=code)
        assert said in answer.err
        assert answer.err.count("\n") == 1
        assert [path.name for path in bare.folder.iterdir()] == ["bad.yaml"]
    if "max_leased" in text:
        with pytest.raises(penstock.InvalidConfig, match="max_leased"):
            penstock.open("bad.yaml")
        assert not bare.store.exists()


def test_a_dead_letter_queue_may_be_in_the_store_alone(cli: Cli) -> None:
    (cli.folder / "penstock.yaml").write_text("queues: {b: {dead_letter: emails}}")
    assert cli("config", "check").lines[-2] == (
        "penstock.yaml: queues.b.dead_letter is 'emails', which is not declared here: "
        "the store must have it already"
    )
    cli("init")
    assert cli("stats", "b", "--json").object["ready"] == 0


def test_a_store_in_memory_cannot_be_made(bare: Cli) -> None:
    assert "ends with the command; name a folder" in bare("init", "--store", "memory:", code=2).err


def test_secrets_are_masked(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.backends import registry

    monkeypatch.setitem(registry.BUILT_IN, "other", registry.BUILT_IN["memory"])
    monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
    (bare.folder / "penstock.yaml").write_text(
        'backends:\n  fast: {url: "other://me:hunter2@host/0?token=hunter2", password: "${REDIS_PASSWORD}"}\n'
        '  first: {url: "redis+lists://me@localhost/0", password: "${REDIS_PASSWORD}"}\n'
        '  second: {url: "rediss+lists://me:hunter2@host/0"}\n'
        "  third: {url: 'rediss+streams://host/0'}\n"
        "security: {third: {auth_token: hunter2}}\n"
    )
    for form in ([], ["--json"]):
        shown = bare("config", "check", *form).out + bare("config", "show", *form).out
        assert "hunter2" not in shown
        assert "***" in shown


def test_bench_measures_a_store_of_its_own_and_leaves_nothing(bare: Cli) -> None:
    found = bare("bench", "--messages", "40", "--batch", "20", "--durability", "os", "--json").objects
    assert [item["operation"] for item in found] == ["enqueue", "lease", "ack"]
    assert {(item["durability"], item["batch"], item["calls"]) for item in found} == {("os", 20, 2)}
    assert all(item["per_s"] > 0 for item in found)
    assert list(bare.folder.iterdir()) == []


def test_bench_says_what_it_cannot_store(bare: Cli) -> None:
    answer = bare("bench", "--size", "100MB", "-n", "1", "--durability", "os", code=2)
    assert "payload" in answer.err
    assert answer.err.count("\n") == 1
    assert list(bare.folder.iterdir()) == []


def test_bench_on_a_given_store_leaves_its_queues_alone(cli: Cli) -> None:
    shown = cli("bench", "-n", "10", "--batch", "5", "--store", str(cli.store)).out
    assert "MESSAGES/S" in shown
    assert cli.through_api(lambda ps: [queue.name for queue in ps.queues()]) == ["emails"]
    cli("bench", "--store", str(cli.store), "--durability", "os", code=2)


def test_demo_refuses_what_it_cannot_use(cli: Cli) -> None:
    assert "--messages" in cli("demo", "--messages", "0", code=2).err
    assert "a store of its own" in cli("demo", "--store", str(cli.store), code=2).err
    assert f"{cli.store} exists; name a folder" in cli("demo", "--path", str(cli.store), code=2).err


def test_demo_keeps_its_store_and_answers_with_its_numbers(bare: Cli) -> None:
    answer = bare.process("demo", "--messages", "300", "--path", "kept", "--no-spark", "--json")
    assert answer.object["ok"] is True
    assert bare("check", "--store", "kept/store").out.endswith("everything fits\n")


def test_metrics_are_printed_or_written_as_objects(cli: Cli) -> None:
    cli("enqueue", "emails", "hello")
    line = 'penstock_messages{backend="default",queue="emails",state="ready"} 1.0'
    assert line in cli("metrics").lines
    found = cli("metrics", "--json").objects
    labels = {"backend": "default", "queue": "emails", "state": "ready"}
    assert {"name": "penstock_messages", "labels": labels, "value": 1.0} in found


def test_metrics_are_served_until_they_are_not(cli: Cli) -> None:
    serving = subprocess.Popen(
        command("metrics", "--port", "0", "--json"), cwd=cli.folder, stdout=subprocess.PIPE
    )
    assert serving.stdout is not None
    port = json.loads(serving.stdout.readline())["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        assert b"penstock_messages{" in page.read()
    taken = cli.process("metrics", "--port", str(port), code=3)
    assert "Address already in use" in taken.err
    serving.send_signal(signal.SIGINT)
    assert serving.wait(60) == 130
    serving.stdout.close()


def test_stats_of_keys_show_what_waits_and_what_holds_it_up(cli: Cli) -> None:
    cli("throttles", "set", "api", "--rate", "1/h")
    cli("enqueue", "emails", "--lines", "--key", "tenant", "--throttle", "api", input="a\nb\nc\n")
    cli("enqueue", "emails", "x")
    cli("lease", "emails", "-n", "5")
    (row,) = cli("stats", "emails", "--keys", "--json").objects
    assert (row["queue"], row["key"], row["ready"], row["weight"]) == ("emails", "tenant", 2, 1)
    shown = cli("stats", "emails", "-k").out
    assert "tenant" in shown
    assert cli("stats", "emails", "-k", "-n", "1", "--json").objects[0]["key"] == "tenant"
    cli("purge", "emails", "-y")
    assert "nothing waiting" in cli("stats", "emails", "--keys").err
    assert "name it" in cli("stats", "--keys", code=2).err

//! `tidegate store` from outside: every command, on a data directory at rest and under a running
//! sidecar, whole and damaged.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run, run_with_output_closed};
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::service::Service;
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::{artifacts, memory, not_run, wait};
use tidegate_wire::rls::Code;
use tidegate_wire::testing::parse;
use tokio::process::Command;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: client
    rate_limit: { name: per-client, unit: hour, requests_per_unit: 3 }
    descriptors:
      - key: path
        rate_limit: { algorithm: token_bucket, unit: hour, requests_per_unit: 10, burst: 20 }
  - key: many
    rate_limit: { unit: day, requests_per_unit: 4000000000 }
  - key: free
    rate_limit: { unlimited: true }
";
/// A state word that is nowhere else in a file.
const MARK: u64 = 0x1122_3344_5566_7788;

/// A directory with limits, and with data in it.
struct Home(TempDir);

impl Home {
    fn new() -> anyhow::Result<Home> {
        Ok(Home(home(LIMITS)?.0))
    }

    /// With data that a sidecar made, which runs no more.
    async fn at_rest() -> anyhow::Result<Home> {
        let home = Home::new()?;
        ensure!(home.serve().await?.process.stop().await?.success());
        Ok(home)
    }

    async fn serve(&self) -> anyhow::Result<Sidecar> {
        Sidecar::start(self.0.path(), &self.limits()).await
    }

    fn limits(&self) -> PathBuf {
        self.0.path().join("limits.yaml")
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn narrow(&self) -> PathBuf {
        self.data().join("cluster/narrow-000.tide")
    }

    fn command(&self, words: &str) -> anyhow::Result<Command> {
        let mut words = words.split_whitespace();
        let mut command = Command::new(artifacts::sidecar()?);
        command.arg("store").args(words.next()).arg(self.data()).args(words);
        command.env("LANG", "C.UTF-8").env_remove("LC_ALL").env("TERM", "xterm");
        command.env("COLUMNS", "80").stdin(Stdio::null());
        Ok(command)
    }

    /// Runs `tidegate store` with these words, the data directory behind the first.
    async fn store(&self, words: &str) -> anyhow::Result<Ran> {
        run(self.command(words)?).await
    }

    /// The same about the counter of a descriptor.
    async fn of_descriptor(&self, words: &str) -> anyhow::Result<Ran> {
        self.store(&format!("{words} --limits {}", self.limits().display())).await
    }

    /// As [`Home::store`], for what must succeed, with `--json` added.
    async fn store_json(&self, words: &str) -> anyhow::Result<Value> {
        let ran = self.store(&format!("{words} --json")).await?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{words}: {ran:?}");
        ran.json()
    }

    /// Every file of the data directory, with its bytes.
    fn bytes(&self) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
        bytes_below(&self.data())
    }
}

fn bytes_below(dir: &Path) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files.append(&mut bytes_below(&path)?);
        } else if path.is_file() {
            // A killed sidecar leaves its socket for takeovers, too.
            files.insert(path.clone(), std::fs::read(&path)?);
        }
    }
    Ok(files)
}

/// Asks the sidecar about one descriptor.
async fn ask(home: &Home, entries: &[(&str, &str)]) -> anyhow::Result<(Code, u32)> {
    let entries: Vec<String> =
        entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let answer = Rls::at(home.0.path()).await?.call(parse(&entries.join(","))?).await?;
    Ok((answer.overall_code(), answer.statuses[0].limit_remaining))
}

/// Makes `count` counters of the limit `many`.
async fn fill(home: &Home, count: usize) -> anyhow::Result<()> {
    let rls = Rls::at(home.0.path()).await?;
    let values: Vec<String> = (0..count).map(|value| value.to_string()).collect();
    for values in values.chunks(100) {
        let about: Vec<(&str, &str)> =
            values.iter().map(|value| ("many", value.as_str())).collect();
        let answer = rls.decide(request("test", &about)).await?;
        ensure!(answer.overall_code() == Code::Ok, "{answer:?}");
    }
    Ok(())
}

/// The number that `text` begins with, before `unit`.
fn secs_before(text: &str, unit: &str) -> anyhow::Result<u64> {
    let (secs, _) = text.split_once(unit).with_context(|| format!("no {unit} in {text}"))?;
    Ok(secs.parse()?)
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[tokio::test]
async fn an_entry_is_set_shown_exported_and_erased_at_rest() -> anyhow::Result<()> {
    let home = Home::at_rest().await?;
    let begun = now_secs();
    let set = home.store("set u64:17 --state 5,0xff --expires-in 60s").await?;
    ensure!(set.code == Some(0) && set.err.is_empty(), "{set:?}");
    ensure!(set.out.starts_with("created the narrow entry of key "), "{set:?}");
    let get = home.store("get u64:17").await?;
    ensure!(get.code == Some(0) && get.err.is_empty(), "{get:?}");
    ensure!(get.out.contains("\nclass    narrow\nstate    5 255 0 0\nexpires  20"), "{get:?}");
    let (_, left) = get.out.split_once(" UTC (in ").context("a time")?;
    let left = if left.starts_with("1m)") { 60 } else { secs_before(left, "s)")? };
    // It was set after the begin, and is rounded up.
    ensure!((60 - (now_secs() - begun + 1)..=60).contains(&left), "{get:?}");

    let got = home.store_json("get u64:17").await?;
    ensure!(got["state"] == serde_json::json!(["5", "255", "0", "0"]), "{got}");
    ensure!(got["found"] == true && got["class"] == "narrow", "{got}");
    let key = got["key"].as_str().context("a key")?.to_owned();
    ensure!(key.len() == 32 && key.ends_with("0000000000000011"), "{key}");
    // What is printed names the key as well.
    ensure!(home.store_json(&format!("get {key}")).await?["state"] == got["state"]);

    let again = home.store_json("set u64:17 --state 6 --expires-at 4000000000").await?;
    ensure!(again["created"] == false && again["expires_at"] == 4_000_000_000_u64, "{again}");
    let text = home.store_json("set text:a --state 18446744073709551615 --expires-in 1h").await?;
    ensure!(text["created"] == true, "{text}");
    let wide = "set u64:17 --class wide --state 1,2,3,4,5 --expires-at 4000000000";
    ensure!(home.store_json(wide).await?["class"] == "wide");
    let wide = home.store_json("get u64:17 --class wide").await?;
    ensure!(wide["state"].as_array().is_some_and(|state| state.len() == 33), "{wide}");

    let export = home.store("export").await?;
    let lines: Vec<&str> = export.out.lines().collect();
    ensure!(lines[0] == "key\tclass\texpires_at\tstate" && lines.len() == 4, "{export:?}");
    ensure!(lines.contains(&format!("{key}\tnarrow\t4000000000\t6,0,0,0").as_str()), "{export:?}");
    let json = home.store("export --json").await?;
    let lines: Vec<Value> = json.out.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.len() == 3, "{json:?}");
    let text_state = serde_json::json!(["18446744073709551615", "0", "0", "0"]);
    ensure!(lines.iter().any(|line| line["state"] == text_state), "{json:?}");

    let erase = home.store("erase u64:17 --class wide").await?;
    ensure!(erase.out == format!("erased the wide entry of key {key}\n"), "{erase:?}");
    let erased = home.store_json("erase u64:17").await?;
    ensure!(erased["erased"] == true && erased["classes"] == serde_json::json!(["narrow"]));
    ensure!(home.store_json("erase u64:17").await?["erased"] == false);
    let gone = home.store("get u64:17").await?;
    ensure!((gone.code, gone.out) == (Some(1), format!("key {key} has no entry\n")));
    let gone = home.store("get u64:17 --json").await?;
    ensure!(gone.code == Some(1) && gone.json()?["found"] == false, "{gone:?}");
    Ok(())
}

#[tokio::test]
async fn expired_entries_are_swept_and_all_are_reset() -> anyhow::Result<()> {
    let home = Home::at_rest().await?;
    for key in ["u64:1", "u64:2"] {
        home.store_json(&format!("set {key} --state 1 --expires-in 1ms")).await?;
    }
    home.store_json("set u64:3 --state 1 --expires-in 1h").await?;
    let since = now_secs();
    wait::until("two entries to expire", wait::CHECK, async || {
        (now_secs() > since + 1).then_some(())
    })
    .await?;
    let narrow = |inspection: &Value, what: &str| inspection["classes"][0][what].as_u64();
    let inspection = home.store_json("inspect").await?;
    ensure!(narrow(&inspection, "live") == Some(1) && narrow(&inspection, "expired") == Some(2));
    ensure!(home.store("export").await?.out.lines().count() == 2);
    ensure!(home.store("export --expired").await?.out.lines().count() == 4);
    ensure!(home.store("get u64:1").await?.code == Some(1));
    let verified = home.store_json("verify").await?;
    ensure!(verified["live"] == 1 && verified["expired"] == 2, "{verified}");

    let sweep = home.store("sweep").await?;
    ensure!(
        sweep.code == Some(0) && sweep.out == "freed 2 nodes of expired entries\n",
        "{sweep:?}"
    );
    ensure!(home.store_json("sweep").await?["freed"] == 0);
    let before = home.bytes()?;
    let reset = home.store("reset").await?;
    ensure!(reset.code == Some(2) && reset.out.is_empty(), "{reset:?}");
    ensure!(
        reset.err.contains("all entries, about 1,") && reset.err.contains("--yes"),
        "{reset:?}"
    );
    ensure!(home.bytes()? == before, "a refused reset changed something");
    ensure!(home.store_json("reset --yes").await?["erased"] == 1);
    let reset = home.store("reset --yes").await?;
    ensure!(reset.code == Some(0) && reset.out == "erased 0 entries\n", "{reset:?}");
    ensure!(home.store("export").await?.out.lines().count() == 1);
    Ok(())
}

#[tokio::test]
async fn an_inspection_lists_and_draws_what_there_is() -> anyhow::Result<()> {
    let home = Home::new()?;
    let sidecar = home.serve().await?;
    wait::for_room_in_window(wait::DAY, wait::ROOM).await?;
    fill(&home, 1_000).await?;
    let inspection = home.store_json("inspect").await?;
    let narrow = &inspection["classes"][0];
    let number = |value: &Value| value.as_u64().context("a number");
    let product = ["files", "key_nodes_per_file", "chain", "node_bytes"];
    let product = product.iter().map(|name| number(&narrow[name])).product::<Result<u64, _>>()?;
    ensure!(number(&narrow["nodes_bytes"])? == product, "{narrow}");
    ensure!(narrow["live"] == 1_000 && narrow["occupied"] == 1_000, "{narrow}");
    let regions = narrow["regions"].as_array().context("regions")?;
    let sum = |what: &str| {
        regions.iter().map(|region| number(&region[what])).sum::<anyhow::Result<u64>>()
    };
    ensure!((sum("occupied")?, sum("updates")?) == (1_000, 1_000), "{narrow}");
    ensure!(inspection["counts"]["created"] == 1_000, "{inspection}");
    let process = &inspection["processes"][0];
    let pid = u64::from(sidecar.process.pid()?);
    ensure!(process["pid"] == pid && process["alive"] == true, "{inspection}");

    let inspect = home.store("inspect").await?;
    ensure!(inspect.code == Some(0) && inspect.err.is_empty(), "{inspect:?}");
    let pid = format!("process {pid}");
    let of_live = "(0.8%): 1,000 live, 0 expired";
    for words in [" key-nodes × 35 nodes × 56 bytes = ", "█", "▒", of_live, "evicted_live", &pid]
    {
        ensure!(inspect.out.contains(words), "{words:?} is not in\n{}", inspect.out);
    }
    let mut plain = home.command("inspect")?;
    plain.env("TERM", "dumb").env("COLUMNS", "60");
    let plain = run(plain).await?.out;
    ensure!(plain.is_ascii() && plain.contains(" key-nodes x 35 nodes x 56 bytes"), "{plain}");
    let map: Vec<&str> = plain.lines().filter(|line| line.starts_with("   |")).collect();
    ensure!(map.len() == 4 && map.iter().all(|line| line.len() == 57), "{plain}");
    Ok(())
}

#[tokio::test]
async fn a_descriptor_names_the_counter_of_a_running_sidecar() -> anyhow::Result<()> {
    let home = Home::new()?;
    let _sidecar = home.serve().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    for remaining in [2, 1] {
        ensure!(ask(&home, &[("client", "a")]).await? == (Code::Ok, remaining));
    }
    let get = home.of_descriptor("get client=a").await?;
    ensure!(get.code == Some(0), "{get:?}");
    let limit = "limit    test/client: fixed_window, 3 per hour\nleft     1 of 3; more ";
    ensure!(get.out.contains(limit), "{get:?}");
    let got = home.of_descriptor("get client=a --domain test --json").await?.json()?;
    ensure!(got["state"][1] == "2" && got["limit"]["left"] == 1, "{got}");
    ensure!(got["limit"]["name"] == "per-client", "{got}");

    // A user whose counter is erased starts anew; the others do not.
    ensure!(ask(&home, &[("client", "b")]).await? == (Code::Ok, 2));
    ensure!(ask(&home, &[("client", "a")]).await? == (Code::Ok, 0));
    ensure!(ask(&home, &[("client", "a")]).await? == (Code::OverLimit, 0));
    let erase = home.of_descriptor("erase client=a").await?;
    ensure!(erase.code == Some(0) && erase.out.starts_with("erased the narrow"), "{erase:?}");
    ensure!(home.of_descriptor("get client=a").await?.code == Some(1));
    ensure!(ask(&home, &[("client", "a")]).await? == (Code::Ok, 2));
    ensure!(ask(&home, &[("client", "b")]).await? == (Code::Ok, 1));

    // What is set is what the sidecar goes by: a bucket of 20 with one token.
    ensure!(ask(&home, &[("client", "a"), ("path", "/")]).await? == (Code::Ok, 19));
    let got = home.of_descriptor("get client=a path=/ --json").await?.json()?;
    ensure!(got["limit"]["algorithm"] == "token_bucket" && got["limit"]["left"] == 19, "{got}");
    home.store_json("reset --yes").await?;
    ensure!(ask(&home, &[("client", "a"), ("path", "/")]).await? == (Code::Ok, 19));
    ensure!(ask(&home, &[("client", "b")]).await? == (Code::Ok, 2));
    let start = now_secs() / 3_600 * 3_600;
    let full = format!("set client=b --state {start}000000000,3 --expires-in 1h");
    let set = home.of_descriptor(&full).await?;
    ensure!(set.code == Some(0) && set.out.starts_with("overwrote the narrow"), "{set:?}");
    ensure!(ask(&home, &[("client", "b")]).await? == (Code::OverLimit, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_at_full_speed_is_looked_at_without_a_flaw() -> anyhow::Result<()> {
    let home = std::sync::Arc::new(Home::new()?);
    let _sidecar = home.serve().await?;
    wait::for_room_in_window(wait::DAY, wait::ROOM).await?;
    fill(&home, 3_000).await?;
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let home = home.clone();
        load.spawn(async move {
            loop {
                fill(&home, 2_000).await?;
            }
        });
    }
    for _ in 0..10 {
        let verified = home.store_json("verify").await?;
        ensure!(verified["sound"] == true && verified["nodes"] == 3_000, "{verified}");
        ensure!(home.store("export").await?.out.lines().count() == 3_001);
        ensure!(home.of_descriptor("get many=7 --json").await?.json()?["found"] == true);
        ensure!(home.store_json("inspect").await?["classes"][0]["live"] == 3_000);
    }
    let failed: Option<Result<anyhow::Result<()>, _>> = load.try_join_next();
    ensure!(failed.is_none(), "{failed:?}");
    Ok(())
}

#[tokio::test]
async fn what_a_killed_sidecar_left_is_sound_and_reported() -> anyhow::Result<()> {
    let home = Home::new()?;
    let mut sidecar = home.serve().await?;
    fill(&home, 100).await?;
    let pid = sidecar.process.pid()?;
    sidecar.kill().await?;
    let before = home.bytes()?;
    let inspect = home.store("inspect").await?;
    let line = inspect.out.lines().find(|line| line.contains(&format!("process {pid}")));
    ensure!(line.is_some_and(|line| line.contains("dead and not yet cleaned up")), "{inspect:?}");
    let verify = home.store("verify").await?;
    ensure!(verify.code == Some(0) && verify.out.ends_with("\nsound\n"), "{verify:?}");
    ensure!(verify.out.contains("writer slots belong to dead processes"), "{verify:?}");
    ensure!(home.bytes()? == before, "a look changed something");
    ensure!(home.of_descriptor("erase many=7").await?.code == Some(0));
    let verified = home.store_json("verify").await?;
    ensure!(verified["writer_slots_left"] == 0 && verified["nodes"] == 99, "{verified}");
    Ok(())
}

#[tokio::test]
async fn damage_is_named_by_file_and_offset_and_left_alone() -> anyhow::Result<()> {
    let home = Home::new()?;
    let mut sidecar = home.serve().await?;
    let sound = home.store("verify").await?;
    ensure!(sound.code == Some(0) && sound.out.contains("\nsound\n"), "{sound:?}");
    for key in 1..=3 {
        home.store_json(&format!("set u64:{key} --state {} --expires-in 1h", MARK + key)).await?;
    }
    let narrow = memory::of(&home.data())?.join("narrow-000.tide");
    let bytes = std::fs::read(&narrow)?;
    let mark = (MARK + 2).to_le_bytes();
    let at = bytes.windows(8).position(|window| window == mark).context("the second entry")?;
    let file = std::fs::OpenOptions::new().write(true).open(&narrow)?;
    file.write_all_at(&[bytes[at] ^ 0x40], at as u64)?;

    let verify = home.store("verify").await?;
    ensure!(verify.code == Some(1), "{verify:?}");
    // Two words of key are before the state.
    let place = format!("{}: byte {} (key-node ", narrow.display(), at - 16);
    ensure!(verify.out.starts_with(&place) && verify.out.contains(": torn: "), "{verify:?}");
    ensure!(verify.out.contains("\n1 flaw: 1 torn\n"), "{verify:?}");
    let json = home.store("verify --json").await?;
    ensure!(json.code == Some(1), "{json:?}");
    let verified = json.json()?;
    let flaw = &verified["flaws"][0];
    ensure!(flaw["offset"] == at - 16 && flaw["kind"] == "torn", "{verified}");
    ensure!(flaw["file"] == narrow.display().to_string(), "{verified}");
    ensure!(verified["flaws_total"] == 1 && verified["nodes_sound"] == 2, "{verified}");
    // The others are still to be had.
    ensure!(home.store("get u64:1").await?.code == Some(0));
    ensure!(home.store("get u64:2").await?.code == Some(1));
    let export = home.store("export").await?;
    ensure!(export.code == Some(0) && export.out.lines().count() == 3, "{export:?}");
    ensure!(export.err.contains("left out 1 flawed nodes"), "{export:?}");

    // As it says: the next one to open it alone drops what is flawed.
    sidecar.process.kill().await?;
    ensure!(home.serve().await?.process.stop().await?.success());
    ensure!(home.store("verify").await?.code == Some(0));
    ensure!(home.store_json("inspect").await?["counts"]["dropped_torn"] == 1);
    Ok(())
}

/// A copy in the snapshot that is damaged is named, and counted when it is met; the copy before it counts.
#[tokio::test]
async fn a_damaged_copy_is_named_and_the_one_before_counts() -> anyhow::Result<()> {
    let home = Home::at_rest().await?;
    for mark in [MARK, MARK + 1] {
        home.store_json(&format!("set u64:1 --state {mark} --expires-in 1h")).await?;
    }
    let mut bytes = std::fs::read(home.narrow())?;
    let mark = (MARK + 1).to_le_bytes();
    let at = bytes.windows(8).position(|window| window == mark).context("the last copy")?;
    bytes[at] ^= 0x40;
    std::fs::write(home.narrow(), &bytes)?;
    let before = home.bytes()?;
    let verify = home.store("verify").await?;
    let place = format!("{}: byte ", home.narrow().display());
    ensure!(verify.code == Some(1) && verify.out.starts_with(&place), "{verify:?}");
    ensure!(verify.out.contains("\n1 flaw: 1 torn\n"), "{verify:?}");
    let found = home.store_json("get u64:1").await?;
    ensure!(found["state"][0].as_str() == Some(&MARK.to_string()), "{found}");
    ensure!(home.bytes()? == before, "a look changed something");

    ensure!(home.serve().await?.process.stop().await?.success());
    ensure!(home.store("verify").await?.code == Some(0));
    ensure!(home.store_json("inspect").await?["counts"]["dropped_torn"] == 1);
    Ok(())
}

/// Where the counters are: in memory, which ends with the process, or at rest.
#[tokio::test]
async fn a_look_says_where_the_counters_are() -> anyhow::Result<()> {
    let home = Home::new()?;
    let mut sidecar = home.serve().await?;
    let memory = memory::of(&home.data())?.display().to_string();
    let inspect = home.store("inspect").await?;
    ensure!(inspect.out.contains(&format!("\nin memory: {memory}\n")), "{inspect:?}");
    ensure!(home.store_json("inspect").await?["memory"] == memory);
    ensure!(sidecar.process.stop().await?.success());
    let inspect = home.store("inspect").await?;
    ensure!(inspect.out.contains("\nnot served: this is the snapshot\n"), "{inspect:?}");
    ensure!(home.store_json("inspect").await?["memory"].is_null());
    ensure!(!Path::new(&memory).exists(), "memory was left behind");
    Ok(())
}

#[tokio::test]
async fn what_is_no_cluster_is_refused_and_nothing_is_made() -> anyhow::Result<()> {
    let home = Home::new()?;
    let set = "set u64:1 --state 1 --expires-in 1h";
    let commands = ["inspect", "verify", "get u64:1", set, "erase u64:1", "sweep", "reset --yes"];
    let refused = async |says: &str| {
        for words in commands.into_iter().chain(["export"]) {
            let ran = home.store(words).await?;
            ensure!(ran.code == Some(1) && ran.err.contains(says), "{words}: {ran:?}");
            ensure!(!ran.out.contains("sound"), "{words}: {ran:?}");
        }
        anyhow::Ok(())
    };
    refused("there is no cluster here").await?;
    ensure!(!home.data().exists(), "a data directory was made");
    std::fs::create_dir(home.data())?;
    refused("there is no cluster here").await?;
    ensure!(home.bytes()?.is_empty(), "something was made");

    // Another program's file under a name of ours.
    ensure!(home.serve().await?.process.stop().await?.success());
    let length = std::fs::metadata(home.narrow())?.len();
    std::fs::write(home.narrow(), vec![b'x'; usize::try_from(length)?])?;
    let before = home.bytes()?;
    refused("narrow-000.tide: not a counter file").await?;
    ensure!(home.bytes()? == before, "a refused file was touched");
    // One that was cut short.
    std::fs::write(home.narrow(), "TIDEGATE")?;
    refused("narrow-000.tide: found 8 bytes").await?;
    Ok(())
}

#[tokio::test]
async fn a_mistake_on_the_command_line_is_reported_and_changes_nothing() -> anyhow::Result<()> {
    let home = Home::at_rest().await?;
    let before = home.bytes()?;
    let limits = format!("--limits {}", home.limits().display());
    let with_limits = |words: &str| format!("{words} {limits}");
    let five = "set u64:1 --expires-in 1h --state 1,2,3,4,5";
    for (words, code, says) in [
        ("get 123".to_owned(), 2, "expected 32 hex digits, u64:NUMBER or text:STRING"),
        ("get u64:x".to_owned(), 2, "expected 32 hex digits, u64:NUMBER or text:STRING"),
        ("get u64:1 u64:2".to_owned(), 2, "2 keys are given, expected one"),
        ("get".to_owned(), 2, "the key is missing"),
        ("get client=a --domain test".to_owned(), 2, "--limits <PATH>"),
        ("inspect --what".to_owned(), 2, "--what"),
        ("set u64:1 --state 1".to_owned(), 2, "--expires-in <TIME>"),
        ("set u64:1 --state 1 --expires-in 5".to_owned(), 2, "expected a time such as"),
        ("set u64:1 --state 1z --expires-in 5s".to_owned(), 2, "expected a 64-bit number"),
        (five.to_owned(), 1, "5 words do not fit into a narrow node, which has 4"),
        ("set u64:1 --state 0,0 --expires-in 5s".to_owned(), 1, "the same as no entry"),
        ("set u64:1 --state 1 --expires-at 5".to_owned(), 1, "at 1970-01-01 00:00:05 UTC"),
        ("set u64:1 --state 1 --expires-in 9999w".to_owned(), 1, "after 2106-02-07 06:28:15 UTC"),
        (with_limits("erase client"), 2, "entry \"client\": expected KEY=VALUE"),
        (with_limits("erase nobody=a"), 1, "nobody=a meets no limit of domain \"test\""),
        (with_limits("erase free=a"), 1, "free=a is unlimited, so it has no counter"),
        (with_limits("erase client=a --domain x"), 1, "there is no domain \"x\", but test"),
        ("erase client=a --limits /none".to_owned(), 1, "/none: cannot read: No such file"),
    ] {
        let ran = home.store(&words).await?;
        ensure!(ran.code == Some(code) && ran.err.contains(says), "{words}: {ran:?}");
        ensure!(ran.out.is_empty(), "{words}: {ran:?}");
    }
    ensure!(home.bytes()? == before, "a mistake changed something");
    let mut help = Command::new(artifacts::sidecar()?);
    help.args(["store", "get", "--help"]);
    let help = run(help).await?;
    ensure!(
        help.code == Some(0) && help.out.contains("Examples:\n  tidegate store get"),
        "{help:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_reader_that_has_read_enough_is_no_error() -> anyhow::Result<()> {
    let home = Home::new()?;
    let _sidecar = home.serve().await?;
    // More than a pipe holds.
    fill(&home, 5_000).await?;
    for words in ["export", "export --json"] {
        let ended = run_with_output_closed(home.command(words)?).await?;
        ensure!(ended.success(), "{words}: {ended}");
    }
    Ok(())
}

/// As another user where the tests run as root, since permissions do not stop root.
#[tokio::test]
async fn permission_to_read_is_enough_for_a_look() -> anyhow::Result<()> {
    let home = Home::at_rest().await?;
    home.store_json("set u64:1 --state 1 --expires-in 1h").await?;
    let before = home.bytes()?;
    let set_mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    before.keys().try_for_each(|file| set_mode(file, 0o444))?;
    set_mode(&home.data().join("cluster"), 0o555)?;
    set_mode(&home.data(), 0o555)?;
    set_mode(home.0.path(), 0o755)?;
    let is_root = rustix::process::geteuid().is_root();
    // A copy, as the place where programs are built may be closed to others.
    let program = home.0.path().join("tidegate");
    std::fs::copy(artifacts::sidecar()?, &program)?;
    for (words, code) in [
        ("inspect", 0),
        ("verify", 0),
        ("get u64:1", 0),
        ("export", 0),
        ("erase u64:1", 1),
        ("sweep", 1),
    ] {
        let mut words_of = words.split_whitespace();
        let mut command = Command::new(&program);
        command.arg("store").args(words_of.next()).arg(home.data()).args(words_of);
        if is_root {
            command.uid(65_534).gid(65_534).current_dir("/");
        }
        let ran = run(command).await?;
        ensure!(ran.code == Some(code), "{words}: {ran:?}");
    }
    // So that the directory can be removed.
    set_mode(&home.data(), 0o755)?;
    set_mode(&home.data().join("cluster"), 0o755)?;
    ensure!(home.bytes()? == before, "a look changed something");
    Ok(())
}

/// Root can change what belongs to another user, and leaves nothing behind that this user cannot open.
#[tokio::test]
async fn root_leaves_no_file_of_its_own_to_another_user() -> anyhow::Result<()> {
    let Some(()) = not_run::or_named("root", not_run::root())? else { return Ok(()) };
    let home = Home::at_rest().await?;
    let files = home.bytes()?;
    files.keys().try_for_each(|file| chown(file, Some(4_321), None))?;
    home.store_json("set u64:1 --state 1 --expires-in 1h").await?;
    ensure!(home.store_json("erase u64:1").await?["erased"] == true);
    let owners = || {
        let owner = |file: &PathBuf| anyhow::Ok(std::fs::metadata(file)?.uid());
        home.bytes()?.keys().map(owner).collect::<anyhow::Result<Vec<u32>>>()
    };
    ensure!(owners()? == vec![4_321; files.len()], "{:?}", owners()?);

    // As in a copy of the files alone.
    std::fs::remove_file(home.data().join("cluster.lock"))?;
    let before = home.bytes()?;
    for words in ["set u64:1 --state 1 --expires-in 1h", "erase u64:1", "sweep", "reset --yes"] {
        let ran = home.store(words).await?;
        let says = "cluster.lock: is missing, and user 0 would create it";
        ensure!(ran.code == Some(1) && ran.err.contains(says), "{words}: {ran:?}");
    }
    ensure!(home.store("verify").await?.code == Some(0));
    ensure!(home.bytes()? == before, "something was changed");
    Ok(())
}

/// Erasing the counter of an exact window erased the one part that stands for it; the seconds and
/// minutes that its other parts held went on to deny. And limits without a name could not be named.
#[tokio::test]
async fn a_counter_in_several_parts_is_shown_and_erased_as_a_whole() -> anyhow::Result<()> {
    let limits = "
- key: n
  rate_limits:
  - {algorithm: sliding_buckets, exact: true, period: 1d, requests: 5}
  - {unit: day, requests_per_unit: 100}
";
    let service = Service::start(limits, &[]).await?;
    service.expect("5x n=a", "OK: OK 0/5 per day").await?;
    service.expect("n=a", "OVER: OVER 0/5 per day").await?;
    let store = async |words: &str| {
        let (verb, words) = words.split_once(' ').unwrap_or((words, ""));
        let mut command = Command::new(artifacts::sidecar()?);
        command.arg("store").arg(verb).arg(service.dir().join("data")).args(words.split(' '));
        command.arg("--limits").arg(service.dir().join("limits")).stdin(Stdio::null());
        run(command).await
    };
    let unsaid = store("get n=a").await?;
    ensure!(unsaid.code == Some(2) && unsaid.err.contains("--limit: 1, 2"), "{unsaid:?}");
    let exact = store("get n=a --limit 1 --json").await?;
    ensure!(exact.json()?["limit"]["left"] == 0, "{exact:?}");
    let erased = store("erase n=a --limit 1").await?;
    ensure!(erased.code == Some(0) && erased.out.starts_with("erased the wide"), "{erased:?}");
    let exact = store("get n=a --limit 1 --json").await?;
    ensure!(exact.json()?["limit"]["left"] == 5, "{exact:?}");
    service.expect("5x n=a", "OK: OK 0/5 per day").await?;
    service.expect("n=a", "OVER: OVER 0/5 per day").await
}

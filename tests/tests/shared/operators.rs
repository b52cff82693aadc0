//! Operators' commands on shared counters, and the move of counts from one machine to servers and back.

use crate::scene::{LIMITS, Scene, clients, on};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::rls::{Rls, allowed_at_once};
use tidegate_tests::shared_servers::{
    Cluster, Memcached, MemcachedProgram, RedisOptions, RedisPrograms,
};
use tidegate_tests::sidecar::{Sidecar, home, until_shared_up};
use tidegate_tests::{artifacts, wait};
use tokio::process::Command;

async fn tidegate(arguments: &[&str]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.args(arguments).env_remove("TIDEGATE_DATA_DIR");
    run(command).await
}

/// The output of a command that succeeds.
async fn output(arguments: &[&str]) -> anyhow::Result<String> {
    let ran = tidegate(arguments).await?;
    ensure!(ran.code == Some(0), "{arguments:?}: {ran:?}");
    Ok(ran.out)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path of text")
}

/// What the start of several servers and sidecars, one after the other, needs at most on a busy machine.
const ROOM: Duration = Duration::from_secs(300);

fn daily() -> String {
    LIMITS.replace("unit: hour", "unit: day")
}

#[tokio::test]
async fn operators_see_and_change_what_machines_share() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let sidecar = scene.sidecar(&[]).await?;
    let url = format!("redis://{}", scene.redis.address());
    let limits = sidecar.dir().join("limits");
    let (limits, data) = (text(&limits)?, sidecar.dir().join("data"));
    let data = text(&data)?;
    let allowed = allowed_at_once(clients(&[&sidecar], 2).await?, 15, ("counted", "a")).await?;
    ensure!(allowed == 30, "{allowed}");

    // What is held and not spent is used, for everybody else.
    let explain = ["explain", "--limits", limits, "--authority", &url, "--data-dir", data];
    let mut explained = Value::Null;
    let look = async || {
        let found = output(&[&explain[..], &["counted=a", "--json"]].concat()).await;
        match found.and_then(|found| Ok(serde_json::from_str(&found)?)) {
            Ok(found) => explained = found,
            Err(error) => return Some(Err(error)),
        }
        let limit = &explained["descriptors"][0]["limits"][0];
        let number = |value: &Value| value.as_u64();
        let (used, held) = (number(&limit["now"]["used"])?, number(&limit["held"]["tokens"])?);
        let is_so = explained["counters"] == "live" && used.checked_sub(held) == Some(30);
        is_so.then_some(Ok(()))
    };
    // The sidecar may take or give back tokens between two reads of a command.
    let found = wait::until("30 used beside what is held", wait::CHECK, look).await;
    found.with_context(|| explained.to_string())??;
    let explained = output(&[&explain[..], &["counted=new"]].concat()).await?;
    ensure!(explained.contains("held     none here"), "{explained}");
    let alone = output(&["explain", "--limits", limits, "--data-dir", data, "counted=a"]).await?;
    ensure!(alone.contains("--authority URL"), "{alone}");

    let counter = ["--authority", &url, "--limits", limits, "counted=b"];
    let get = [&["store", "get"][..], &counter].concat();
    ensure!(tidegate(&get).await?.code == Some(1), "there is no entry");
    let allowed = allowed_at_once(clients(&[&sidecar], 1).await?, 1, ("counted", "b")).await?;
    let got = output(&get).await?;
    ensure!(allowed == 1 && got.contains("left     99 of 100; more "), "{got}");
    let erased = output(&[&["store", "erase"][..], &counter].concat()).await?;
    ensure!(erased.starts_with("erased the narrow entry"), "{erased}");
    ensure!(tidegate(&get).await?.code == Some(1), "there is no entry any more");
    let key = got.split_whitespace().nth(1).context("a key")?;
    let set = ["store", "set", "--authority", &url, key, "--state", "5", "--expires-in", "60s"];
    ensure!(output(&set).await?.starts_with("created"));
    let exported = output(&["store", "export", "--authority", &url]).await?;
    ensure!(exported.contains(&format!("{key}\tnarrow\t")), "{exported}");

    let lost = tidegate(&["store", "get", "--authority", "redis://127.0.0.1:1", key]).await?;
    ensure!(lost.code == Some(1) && lost.err.contains("--authority"), "{lost:?}");
    Ok(())
}

/// A descriptor that has limits per second alone is in the servers of these.
#[tokio::test]
async fn limits_per_second_are_found_in_servers_of_their_own() -> anyhow::Result<()> {
    let Some(main) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let Some(second) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let limits = "- {key: s, rate_limit: {unit: second, requests_per_unit: 5}}
- {key: h, rate_limit: {unit: hour, requests_per_unit: 5}}
";
    let (_dir, limits) = home(&format!("domain: test\ndescriptors:\n{limits}"))?;
    let urls = [&main, &second].map(|scene| format!("redis://{}", scene.redis.address()));
    let main = ["--authority", &urls[0], "--limits", text(&limits)?];
    let both = [&main[..], &["--authority-per-second", &urls[1]]].concat();
    for (key, is_apart) in [("s=a", true), ("h=a", false)] {
        let set = ["store", "set", "--state", "3,0,0,0", "--expires-in", "60s"];
        output(&[&set[..], &both, &[key]].concat()).await?;
        let get = async |place: &[&str]| {
            let ran = tidegate(&[&["store", "get"], place, &[key]].concat()).await?;
            anyhow::Ok(ran.code == Some(0))
        };
        ensure!(get(&both).await?, "{key}");
        ensure!(get(&main).await? != is_apart, "{key}");
        let second = output(&["store", "export", "--authority", &urls[1]]).await?;
        ensure!((second.lines().count() > 1) == is_apart, "{key}: {second}");
        let erased = output(&[&["store", "erase"], &both[..], &[key]].concat()).await?;
        ensure!(erased.starts_with("erased"), "{key}: {erased}");
    }
    let refused = tidegate(&["store", "export", "--authority-per-second", &urls[1]]).await?;
    ensure!(refused.code == Some(2), "{refused:?}");
    let refused = [&["store", "export"], &both[..2], &both[4..]].concat();
    let refused = tidegate(&refused).await?;
    ensure!(refused.code == Some(2) && refused.err.contains("no effect here"), "{refused:?}");
    Ok(())
}

/// Counts move to servers of every kind, and back from those that give a list of their keys.
#[tokio::test]
async fn counts_move_to_clusters_and_memcached() -> anyhow::Result<()> {
    let (Some(programs), Some(program)) = (RedisPrograms::find()?, MemcachedProgram::find()?)
    else {
        return Ok(());
    };
    wait::for_room_in_window(wait::DAY, ROOM).await?;
    let (old, limits) = home(&format!("domain: test\ndescriptors:\n{}", daily()))?;
    ensure!(admits(old.path(), &limits, &[], 30).await? == 30);
    let (data, file) = (old.path().join("data"), old.path().join("counters.tsv"));
    std::fs::write(&file, output(&["store", "export", "--seed", text(&data)?]).await?)?;
    let dir = TempDir::new()?;
    let cluster = Cluster::start(&programs, dir.path(), &[], None).await?;
    let memcached = Memcached::start(&program, dir.path(), &[]).await?;
    for (url, has_list) in [
        (format!("redis+cluster://{}", cluster.addresses()), true),
        (format!("memcached://{}", memcached.address()), false),
    ] {
        let place = ["--authority", &url];
        output(&[&["store", "import"], &place[..], &[text(&file)?]].concat()).await?;
        let counter = [&place[..], &["--limits", text(&limits)?, "counted=a"]].concat();
        let got = output(&[&["store", "get"], &counter[..]].concat()).await?;
        ensure!(got.contains("left     70 of 100"), "{url}: {got}");
        let explained = output(&[&["explain"], &counter[..]].concat()).await?;
        ensure!(explained.contains("70"), "{url}: {explained}");
        let new = TempDir::new()?;
        let flags = [&place[..], &["--authority-timeout", "2s"]].concat();
        ensure!(admits(new.path(), &limits, &flags, 50).await? == 50, "{url}");
        let listed = tidegate(&[&["store", "export", "--seed"], &place[..]].concat()).await?;
        if has_list {
            ensure!(listed.code == Some(0), "{url}: {listed:?}");
            let (back, listing) = (TempDir::new()?, old.path().join("listed.tsv"));
            std::fs::write(&listing, listed.out)?;
            let data = back.path().join("data");
            let import = ["store", "import", "--capacity", "2000", text(&data)?, text(&listing)?];
            output(&import).await?;
            ensure!(admits(back.path(), &limits, &[], 100).await? == 20, "{url}");
        } else {
            ensure!(listed.code == Some(1) && listed.err.contains("no list"), "{url}: {listed:?}");
        }

        // Servers that count already under another seed.
        let other = on(&url, &["--authority-prefix", "other:"]).await?;
        ensure!(allowed_at_once(clients(&[&other], 1).await?, 1, ("counted", "a")).await? == 1);
        let prefix = ["--authority-prefix", "other:", text(&file)?];
        let refused = tidegate(&[&["store", "import"], &place[..], &prefix].concat()).await?;
        let is_told = refused.err.contains("another seed");
        ensure!(refused.code == Some(1) && is_told, "{url}: {refused:?}");
    }
    Ok(())
}

/// A sidecar with these flags on the data directory of `dir`, and what it admits of up to a hundred hits.
async fn admits(dir: &Path, limits: &Path, flags: &[&str], most: u32) -> anyhow::Result<u32> {
    let flags = [&["--capacity", "2000", "--wide-capacity", "100"], flags].concat();
    let mut sidecar = Sidecar::start_with(dir, limits, &flags).await?;
    if flags.contains(&"--authority") {
        until_shared_up(sidecar.http).await?;
    }
    let allowed = allowed_at_once(vec![Rls::at(dir).await?], most, ("counted", "a")).await?;
    ensure!(sidecar.process.stop().await?.success());
    Ok(allowed)
}

#[tokio::test]
async fn counts_move_from_one_machine_to_servers_and_back() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    wait::for_room_in_window(wait::DAY, ROOM).await?;
    let url = format!("redis://{}", scene.redis.address());
    let (old, limits) = home(&format!("domain: test\ndescriptors:\n{}", daily()))?;
    ensure!(admits(old.path(), &limits, &[], 30).await? == 30);
    let (data, file) = (old.path().join("data"), old.path().join("counters.tsv"));
    let (data, file) = (text(&data)?, text(&file)?);

    std::fs::write(file, output(&["store", "export", data]).await?)?;
    let without = tidegate(&["store", "import", "--authority", &url, file]).await?;
    ensure!(without.code == Some(1) && without.err.contains("again with --seed"), "{without:?}");
    // A command has asked the servers before, so they have a seed, and no counters.
    output(&["store", "export", "--authority", &url]).await?;
    std::fs::write(file, output(&["store", "export", "--seed", data]).await?)?;
    let import = ["store", "import", "--authority", &url, file];
    let imported = output(&import).await?;
    ensure!(imported.starts_with("imported "), "{imported}");
    let again = output(&import).await?;
    ensure!(again.starts_with("imported 0 ") && again.contains("there already"), "{again}");

    let apart = TempDir::new()?;
    let flags = ["--authority", &url, "--authority-timeout", "2s"];
    ensure!(admits(apart.path(), &limits, &flags, 50).await? == 50);

    let exported = output(&["store", "export", "--seed", "--json", "--authority", &url]).await?;
    std::fs::write(file, exported)?;
    let new = TempDir::new()?;
    let data = new.path().join("data");
    output(&["store", "import", "--capacity", "2000", text(&data)?, file]).await?;
    ensure!(admits(new.path(), &limits, &[], 100).await? == 20);

    // Servers that count already under another seed.
    let other = on(&url, &["--authority-prefix", "other:"]).await?;
    ensure!(allowed_at_once(clients(&[&other], 1).await?, 1, ("counted", "a")).await? == 1);
    let prefix = ["--authority-prefix", "other:"];
    let refused = tidegate(&[&import[..], &prefix].concat()).await?;
    ensure!(refused.code == Some(1) && refused.err.contains("another seed"), "{refused:?}");
    let refused = tidegate(&["store", "import", text(&apart.path().join("data"))?, file]).await?;
    ensure!(refused.code == Some(1) && refused.err.contains("another seed"), "{refused:?}");
    Ok(())
}

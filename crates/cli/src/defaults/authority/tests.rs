use crate::arguments::{Command, ServeOptions};
use crate::defaults::ratelimit_env::RatelimitEnv;
use crate::defaults::srv::Srv;
use crate::defaults::{parse, tests::serve_options};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_authority::Failure;
use tidegate_process::SharedSettings;
use tidegate_remote::{Address, Credentials, Servers, Settings};

fn options(flags: &[&str]) -> ServeOptions {
    let flags = [&["--limits", "l"], flags].concat();
    serve_options(&flags, &Srv::default(), &RatelimitEnv::default()).0
}

fn shared(flags: &[&str]) -> SharedSettings {
    options(flags).authority.settings().unwrap().expect("servers")
}

fn per_second(flags: &[&str]) -> Settings {
    shared(flags).per_second.expect("servers")
}

#[track_caller]
fn mistake(flags: &[&str], expected: &str) {
    let required = ["tidegate", "serve", "--data-dir", "d", "--limits", "l"];
    let arguments = [&required[..], flags].concat();
    let error = parse(arguments, &Srv::default(), &RatelimitEnv::default()).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(expected), "{flags:?}: {message}");
    assert!(!message.contains("secret"), "{flags:?}: {message}");
    assert_eq!(error.exit_code(), 2, "{flags:?}");
}

#[track_caller]
fn unreadable(flags: &[&str], expected: &str) {
    let error = format!("{:#}", options(flags).authority.settings().unwrap_err());
    assert!(error.contains(expected), "{flags:?}: {error}");
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

fn credentials(user: Option<&str>, password: &str) -> Credentials {
    Credentials { user: user.map(str::to_owned), password: Some(password.to_owned()) }
}

#[test]
fn counters_are_of_this_machine_unless_servers_are_named() {
    for flags in
        [&[][..], &["--authority", "local"], &["--authority", "local", "--authority-user", "a"]]
    {
        assert!(options(flags).authority.settings().unwrap().is_none(), "{flags:?}");
    }
}

#[test]
fn a_server_has_defaults() {
    let shared = shared(&["--authority", "redis://tide:gate@limits/2"]);
    let Settings {
        servers,
        credentials: given,
        database,
        tls,
        prefix,
        connections,
        timeout,
        jitter,
        ..
    } = shared.servers;
    assert_eq!(servers, Servers::Single(tcp("limits", 6379)));
    assert_eq!((given, database), (credentials(Some("tide"), "gate"), 2));
    assert!(tls.is_none());
    assert_eq!((prefix.as_str(), connections.get()), ("tidegate:", 2));
    assert_eq!((timeout, jitter), (Duration::from_millis(100), Duration::from_secs(10)));
    assert_eq!((shared.failure, shared.fails_health), (Failure::Local, false));
    assert!(shared.per_second.is_none());
}

#[test]
fn memcached_is_one_or_several_servers() {
    let servers = |url| shared(&["--authority", url]).servers.servers;
    assert_eq!(servers("memcached://a"), Servers::Memcached(vec![tcp("a", 11211)]));
    let both = vec![tcp("a", 11211), tcp("b", 1)];
    assert_eq!(servers("memcached://a,b:1"), Servers::Memcached(both));
}

#[test]
fn each_flag_is_taken() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let passwords = ["gate\n", "sentry\r\n", "second", "other"];
    let passwords = passwords.map(|text| file(text.trim(), text));
    let pem = [file("ca", "C"), file("cert", "A"), file("key", "K")];
    let flags = [
        "--authority",
        "rediss+sentinel://a,b:1/limits",
        "--authority-user=tide",
        &format!("--authority-password-file={}", passwords[0]),
        "--authority-sentinel-user=look",
        &format!("--authority-sentinel-password-file={}", passwords[1]),
        &format!("--authority-ca={}", pem[0]),
        &format!("--authority-cert={}", pem[1]),
        &format!("--authority-key={}", pem[2]),
        "--authority-skip-hostname",
        "--authority-timeout=1s",
        "--authority-connections=3",
        "--authority-failure=deny",
        "--authority-health",
        "--authority-prefix=shop:",
        "--authority-expiry-jitter=0s",
        "--authority-per-second=redis+sentinel://c/fast",
        "--authority-per-second-user=quick",
        &format!("--authority-per-second-password-file={}", passwords[2]),
        "--authority-per-second-sentinel-user=eye",
        &format!("--authority-per-second-sentinel-password-file={}", passwords[3]),
        "--authority-per-second-timeout=5ms",
        "--authority-per-second-connections=1",
    ];
    let (shared, second) = (shared(&flags), per_second(&flags));
    assert_eq!((shared.failure, shared.fails_health), (Failure::Deny, true));
    let main = shared.servers;
    let sentinel = |sentinels, primary: &str, credentials| Servers::Sentinel {
        sentinels,
        primary: primary.to_owned(),
        credentials,
    };
    let sentinels = vec![tcp("a", 26379), tcp("b", 1)];
    let known = credentials(Some("look"), "sentry");
    assert_eq!(main.servers, sentinel(sentinels, "limits", known));
    assert_eq!(main.credentials, credentials(Some("tide"), "gate"));
    let tls = main.tls.unwrap();
    assert_eq!(
        (tls.ca, tls.client, tls.skips_hostname),
        (b"C".into(), Some((b"A".into(), b"K".into())), true)
    );
    assert_eq!((main.timeout, main.connections.get()), (Duration::from_secs(1), 3));
    assert_eq!((main.prefix.as_str(), main.jitter), ("shop:", Duration::ZERO));
    let known = credentials(Some("eye"), "other");
    assert_eq!(second.servers, sentinel(vec![tcp("c", 26379)], "fast", known));
    assert_eq!(second.credentials, credentials(Some("quick"), "second"));
    assert!(second.tls.is_none());
    assert_eq!((second.timeout, second.connections.get()), (Duration::from_millis(5), 1));
    assert_eq!(second.prefix, "shop:");
}

#[test]
fn servers_for_limits_per_second_are_like_the_others_otherwise() {
    let second = per_second(&[
        "--authority=redis://a",
        "--authority-timeout=1s",
        "--authority-connections=3",
        "--authority-per-second=unix:/run/r.sock",
    ]);
    assert_eq!(second.servers, Servers::Single(Address::Unix("/run/r.sock".into())));
    assert_eq!((second.timeout, second.connections.get()), (Duration::from_secs(1), 3));
    assert_eq!(second.credentials, Credentials::default());
}

#[test]
fn mistakes_say_what_to_do() {
    let server = "--authority=redis://limits";
    mistake(&["--authority=redis://:secret@"], "--authority: expected HOST:PORT");
    mistake(&["--authority=http://x"], "--authority: expected local, redis://HOST:PORT");
    mistake(&["--authority-prefix=a"], "--authority-prefix needs servers: --authority URL");
    mistake(&["--authority-health"], "--authority-health needs servers: --authority URL");
    mistake(
        &["--authority-per-second=redis://a"],
        "--authority-per-second needs servers: --authority URL",
    );
    mistake(
        &[server, "--authority-per-second=local"],
        "--authority-per-second local: expected servers",
    );
    mistake(
        &[server, "--authority-per-second-user=a"],
        "--authority-per-second-user needs servers: --authority-per-second URL",
    );
    mistake(
        &[server, "--authority-password=secret"],
        "every user of this machine sees a command line; use --authority-password-file",
    );
    mistake(&[server, "--authority-user=a"], "--authority: a user needs a password");
    mistake(&["--authority=redis://a@limits"], "--authority: a user needs a password");
    mistake(
        &["--authority=redis://:secret@limits", "--authority-password-file=f"],
        "the URL of --authority has a user or a password, too",
    );
    mistake(&["--authority=memcached://a", "--authority-replicas=1"], "memcached has no replicas");
    mistake(
        &["--authority=memcached://a", "--authority-password-file=f"],
        "memcached has no users here",
    );
    mistake(&[server, "--authority-sentinel-password-file=f"], "--authority names no Sentinels");
    mistake(
        &["--authority=redis+sentinel://a/b", "--authority-sentinel-user=c"],
        "--authority-sentinel-user needs a password",
    );
    mistake(
        &["--authority=rediss://a", "--authority-cert=c"],
        "--authority-cert needs --authority-key",
    );
    mistake(
        &["--authority=rediss://a", "--authority-key=c"],
        "--authority-key needs --authority-cert",
    );
    for flag in ["--authority-ca=c", "--authority-skip-hostname"] {
        mistake(&[server, flag], "has no effect without TLS: write rediss://");
    }
    for prefix in ["", "a b", "a{b}", "\u{e9}", &"a".repeat(101)] {
        let flag = format!("--authority-prefix={prefix}");
        mistake(&[server, &flag], "expected 1 to 100 characters of ASCII");
    }
    mistake(&[server, "--authority-timeout=0s"], "expected a time from 1ms to 60s");
    mistake(&[server, "--authority-expiry-jitter=2d"], "expected a time from 0s to 1d");
    mistake(&[server, "--authority-connections=65"], "65 is not in 1..=64");
    mistake(&[server, "--authority-failure=open"], "deny, allow, local");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = TempDir::new().unwrap();
    let write = |text: &[u8]| {
        let path = dir.path().join("file");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let server = "--authority=redis://limits";
    unreadable(
        &[server, "--authority-password-file=/none"],
        "--authority-password-file /none: No such",
    );
    for (text, expected) in [
        (&b""[..], "it is empty"),
        (b"\n", "it is empty"),
        (b"a\nb\n", "one line with the password is expected"),
        (b"\xff", "a password in UTF-8 is expected"),
        (&vec![b'a'; 5 << 20], "more than 4 MiB"),
    ] {
        let flag = format!("--authority-password-file={}", write(text));
        unreadable(&[server, &flag], expected);
    }
    unreadable(
        &["--authority=rediss://a", "--authority-ca=/none"],
        "--authority-ca /none: No such",
    );
}

/// Options of a command that is not `serve` are not looked at.
#[test]
fn other_commands_have_no_servers() {
    let (cli, _) =
        parse(["tidegate", "check", "l"], &Srv::default(), &RatelimitEnv::default()).unwrap();
    assert!(matches!(cli.command, Command::Check(_)));
}

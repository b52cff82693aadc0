use super::*;
use std::path::PathBuf;
use tidegate_store::{AfterLoss, Eviction};

const MIB: u64 = 1 << 20;

fn options(flags: &[&str]) -> Settings {
    let mut settings = Settings {
        dir: Some("data".into()),
        memory_dir: "/dev/shm".into(),
        capacity: None,
        load: 0.8,
        geometry: None,
        wide_capacity: 1 << 12,
        eviction: Eviction::Refuse,
        after_loss: AfterLoss::LastSnapshot,
        sync_interval: None,
    };
    for pair in flags.chunks_exact(2) {
        match pair[0] {
            "--capacity" => settings.capacity = Some(pair[1].parse().unwrap()),
            "--load" => settings.load = pair[1].parse().unwrap(),
            "--geometry" => settings.geometry = Some(pair[1].parse().unwrap()),
            "--wide-capacity" => settings.wide_capacity = pair[1].parse().unwrap(),
            flag => panic!("{flag}"),
        }
    }
    settings
}

fn limit(mib: u64, used: u64) -> Limit {
    let file = PathBuf::from("/sys/fs/cgroup/memory.max");
    Limit { file, bytes: mib * MIB, used: used * MIB }
}

fn tmpfs(free: u64) -> FileSystem {
    FileSystem { directory: PathBuf::from("/dev/shm"), free: free * MIB }
}

/// A budget with a memory limit (MiB, and MiB in use), and a tmpfs (MiB free).
fn budget(memory: Option<(u64, u64)>, free: Option<u64>) -> MemoryBudget {
    let limits = memory.map(|(mib, used)| limit(mib, used)).into_iter().collect();
    MemoryBudget::of(limits, free.map(tmpfs), 0)
}

/// The bytes of a cluster with these options.
fn bytes(options: &Settings, capacity_default: u64) -> u64 {
    let narrow = narrow(options, capacity_default).unwrap();
    Options { wide: wide(options).unwrap(), ..Options::narrow(narrow) }.total_bytes()
}

/// Checks the size of the default (MiB), that it fits, and its reason.
#[track_caller]
fn check_default(budget: &MemoryBudget, share: u64, reason: &str) {
    let options = options(&[]);
    let default = budget.default_size(&options);
    assert_eq!(default.reason, reason);
    let bytes = bytes(&options, default.capacity);
    let share = share * MIB;
    assert!(bytes <= share && bytes > share - MIB / 100, "{bytes} of {share} bytes");
    budget.check(bytes, &options).unwrap();
}

#[test]
fn the_default_shrinks_to_what_fits() {
    let third = "a third of the memory limit, 129.0 MiB";
    check_default(&budget(Some((129, 10)), None), 43, third);
    check_default(&budget(Some((129, 10)), Some(1000)), 43, third);
    let half = "half of the 64.0 MiB that are free in /dev/shm";
    check_default(&budget(Some((129, 10)), Some(64)), 32, half);
    check_default(&budget(None, Some(64)), 32, half);
    // Other processes of the container have the rest.
    let left = "what is left of the memory limit, 129.0 MiB";
    check_default(&budget(Some((129, 77)), Some(64)), 20, left);
}

#[test]
fn the_default_never_grows() {
    let plain = DefaultSize { capacity: 1 << 20, reason: "the default fits".to_owned() };
    for budget in [budget(None, None), budget(Some((100_000, 0)), Some(100_000))] {
        assert_eq!(budget.default_size(&options(&[])), plain);
    }
}

/// A default with almost no memory is an error about the memory.
#[test]
fn the_default_has_a_least_size() {
    for budget in
        [budget(Some((40, 10)), None), budget(None, Some(4)), budget(Some((10, 20)), Some(0))]
    {
        let options = options(&[]);
        let default = budget.default_size(&options);
        assert_eq!(default.capacity, CAPACITY_DEFAULT_MIN);
        budget.check(bytes(&options, default.capacity), &options).unwrap_err();
    }
}

#[test]
fn what_is_asked_for_is_never_changed() {
    for flags in [&["--capacity", "10000000"][..], &["--geometry", "4x65536x35"]] {
        let options = options(flags);
        assert_eq!(narrow(&options, 1).unwrap(), narrow(&options, 1 << 20).unwrap());
    }
}

#[track_caller]
fn check_refused(budget: &MemoryBudget, flags: &[&str], expected: &str) {
    let options = options(flags);
    let error = budget.check(bytes(&options, 1), &options).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_does_not_fit_is_an_error_that_says_what_would() {
    let ten_million = ["--capacity", "10000000"];
    check_refused(
        &budget(Some((128, 9)), Some(64)),
        &ten_million,
        "the counters need 709.7 MiB, and 87.0 MiB are left for them: the memory limit \
         /sys/fs/cgroup/memory.max is 128.0 MiB, of which 9.0 MiB are in use and 32.0 MiB are reserved for the \
         processes; set --capacity 1080000 or less, or raise the limit to 765.0 MiB",
    );
    check_refused(
        &budget(None, Some(64)),
        &ten_million,
        "the counters need 709.7 MiB, and 64.0 MiB are free in the file system of /dev/shm; set \
         --capacity 760000 or less, or free some space there",
    );
    check_refused(
        &budget(None, Some(64)),
        &["--geometry", "4x65536x35"],
        "the counters need 523.4 MiB, and 64.0 MiB are free in the file system of /dev/shm; set \
         --capacity 760000 or less instead of --geometry, or free some space there",
    );
    check_refused(
        &budget(Some((128, 200)), None),
        &["--capacity", "10", "--wide-capacity", "0"],
        "the counters need 8.0 MiB, and 0.0 MiB are left for them: the memory limit \
         /sys/fs/cgroup/memory.max is 128.0 MiB, of which 200.0 MiB are in use and 32.0 MiB are reserved for the \
         processes; no --capacity fits next to --wide-capacity and 8 MiB for updates in progress, or raise the \
         limit to 241.0 MiB",
    );
}

/// Finds the largest capacity that fits, exactly.
#[test]
fn the_largest_capacity_that_fits_is_found() {
    for flags in [&[][..], &["--load", "0.05"], &["--load", "0.95"], &["--wide-capacity", "100000"]]
    {
        let flags = [&["--capacity", "1"], flags].concat();
        let options = options(&flags);
        for free in (0..200).map(|step| step * 3 * MIB / 7) {
            let Some(capacity) = fitting(&options, free) else {
                assert!(bytes(&options, 1) > free);
                continue;
            };
            let of = |capacity: u64| Settings { capacity: Some(capacity), ..self::options(&flags) };
            assert!(bytes(&of(capacity), 0) <= free, "{capacity} in {free} bytes");
            assert!(bytes(&of(capacity + 1), 0) > free, "{capacity} in {free} bytes");
        }
    }
}

#[test]
fn workers_have_their_share() {
    let reserved = |workers| MemoryBudget::of(Vec::new(), None, workers).reserved;
    assert_eq!((reserved(0), reserved(4)), (32 * MIB, 48 * MIB));
}

use super::*;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Files of a machine, by path and text.
fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// The tightest limit: its file, its bytes, and the bytes in use.
#[track_caller]
fn check(files: &[(&str, &str)], expected: Option<(&str, u64, u64)>) {
    let root = machine(files);
    let expected =
        expected.map(|(file, bytes, used)| Limit { file: root.path().join(file), bytes, used });
    assert_eq!(limits(root.path()).into_iter().next(), expected);
}

const V2: (&str, &str) = (
    "proc/self/mountinfo",
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
);

/// As in a container with its own namespace: only its own group is visible.
#[test]
fn a_container_of_version_2_is_limited_by_its_group() {
    check(
        &[
            V2,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "134217728\n"),
            ("sys/fs/cgroup/memory.high", "max\n"),
            ("sys/fs/cgroup/memory.current", "20971520\n"),
            (
                "sys/fs/cgroup/memory.stat",
                "anon 4194304\nfile 16777216\nshmem 4194304\ninactive_file 8388608\nactive_file 2097152\n",
            ),
        ],
        Some(("sys/fs/cgroup/memory.max", 128 * MIB, 10 * MIB)),
    );
}

#[test]
fn the_ancestor_with_least_left_counts() {
    let files = [
        V2,
        ("proc/self/cgroup", "0::/pod/container\n"),
        ("sys/fs/cgroup/pod/container/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/pod/container/memory.current", "0\n"),
        ("sys/fs/cgroup/pod/memory.max", "268435456\n"),
        ("sys/fs/cgroup/pod/memory.current", "209715200\n"),
        // The top has no such files.
        ("sys/fs/cgroup/cgroup.procs", ""),
    ];
    check(&files, Some(("sys/fs/cgroup/pod/memory.max", 256 * MIB, 200 * MIB)));
    // A sibling group does not matter.
    let mut files = files.to_vec();
    files[1].1 = "0::/other\n";
    check(&files, None);
}

#[test]
fn what_slows_down_is_a_limit() {
    check(
        &[
            V2,
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.high", "67108864\n"),
            ("sys/fs/cgroup/a/memory.current", "1048576\n"),
        ],
        Some(("sys/fs/cgroup/a/memory.high", 64 * MIB, MIB)),
    );
}

const V1: (&str, &str) = (
    "proc/self/mountinfo",
    "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
     35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
     41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
);
const V1_GROUP: (&str, &str) = ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/pods/a:b\n0::/\n");

#[test]
fn version_1_is_limited_by_its_groups() {
    check(
        &[
            V1,
            V1_GROUP,
            ("sys/fs/cgroup/memory/pods/a:b/memory.limit_in_bytes", "134217728\n"),
            ("sys/fs/cgroup/memory/pods/a:b/memory.usage_in_bytes", "12582912\n"),
            (
                "sys/fs/cgroup/memory/pods/a:b/memory.stat",
                "inactive_file 1\ntotal_inactive_file 9437184\ntotal_active_file 1048576\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4294967296\n"),
        ],
        Some(("sys/fs/cgroup/memory/pods/a:b/memory.limit_in_bytes", 128 * MIB, 2 * MIB)),
    );
}

#[test]
fn a_flat_group_of_version_1_limits_nobody_below() {
    let mut files = vec![
        V1,
        V1_GROUP,
        ("sys/fs/cgroup/memory/pods/memory.limit_in_bytes", "1048576\n"),
        ("sys/fs/cgroup/memory/pods/memory.usage_in_bytes", "0\n"),
        ("sys/fs/cgroup/memory/pods/memory.use_hierarchy", "0\n"),
    ];
    check(&files, None);
    files[4].1 = "1\n";
    check(&files, Some(("sys/fs/cgroup/memory/pods/memory.limit_in_bytes", MIB, 0)));
}

/// Without a cgroup namespace, a container sees its own group at the mount point, and the path of the host.
#[test]
fn a_group_is_found_below_what_is_mounted() {
    let point = "/sys/fs/c\\040group";
    let mounted = format!("35 31 0:32 /docker/1 {point} ro - cgroup cgroup rw,memory\n");
    for (group, directory) in [
        ("/docker/1", ""),
        ("/docker/1/inner", "/inner"),
        // Nothing below the mount point has these names.
        ("/docker/2", ""),
        ("/../2", ""),
    ] {
        let group = format!("4:memory:{group}\n");
        let limit = format!("sys/fs/c group{directory}/memory.limit_in_bytes");
        let usage = format!("sys/fs/c group{directory}/memory.usage_in_bytes");
        let files = [
            ("proc/self/mountinfo", &*mounted),
            ("proc/self/cgroup", &group),
            (&limit, "7"),
            (&usage, "3"),
        ];
        check(&files, Some((&limit, 7, 3)));
    }
}

#[test]
fn what_cannot_be_read_limits_nothing() {
    check(&[], None);
    check(&[V2, ("proc/self/cgroup", "0::/\n")], None);
    check(&[V1, ("proc/self/cgroup", "what\n4:memory\n:::\n")], None);
    check(&[("proc/self/mountinfo", "1 2\n - \n3 - cgroup2\n"), V1_GROUP], None);
    for text in ["", "max\n", "-1\n", "1 2\n", "9223372036854771712\n", "18446744073709551616\n"] {
        check(
            &[
                V2,
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", text),
                ("sys/fs/cgroup/memory.current", "1\n"),
            ],
            None,
        );
    }
}

#[test]
fn escapes_of_the_kernel_are_read() {
    for (text, expected) in [
        ("/a\\040b\\011\\134", "/a b\t\\"),
        ("/plain", "/plain"),
        ("/\\9x", "/\\9x"),
        ("/\\", "/\\"),
        ("/\\777\\é1", "/\\777\\é1"),
    ] {
        assert_eq!(unescaped(text), Path::new(expected), "{text}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_on_the_file_system_above() {
    let dir = TempDir::new().unwrap();
    let above = file_system(dir.path()).unwrap();
    let below = file_system(&dir.path().join("a/b")).unwrap();
    assert_eq!(above.directory, dir.path());
    assert_eq!(below.directory, dir.path());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(file_system(&file.join("below")).is_err());
}

//! The files of a directory that are read, and the errors about them.

use super::*;

fn load_dir(path: &Path) -> Result<Loaded, crate::LoadErrors> {
    load(path, SameDomain::Refuse)
}

#[test]
fn all_errors_of_all_files_are_reported_together() {
    let dir = directory(&[
        ("a.yaml", "domain: one\ndescriptors:\n- key: ''\n- {key: k, rate_limit: {unit: era}}\n"),
        ("b.yml", "domain: two\ndescriptors:\n- {key: k, rate_limit: {unit: eon}}\n"),
        ("bad.yaml", "domain: [\n"),
        ("c.yaml", "domain: three\n"),
        ("d.yaml", "domain: three\ndescriptors: [{key: ''}]\n"),
        (".hidden.yaml", "nonsense"),
        ("notes.txt", "nonsense"),
    ]);
    let errors = load_dir(dir.path()).unwrap_err();
    let text = errors.to_string().replace(dir.path().to_str().unwrap(), "");
    let expected = "\
/a.yaml:3:8: `key` is required and must not be empty
/a.yaml:4:31: unknown unit \"era\"; expected second, minute, hour, day, week, month, year
/b.yml:3:31: unknown unit \"eon\"; expected second, minute, hour, day, week, month, year
/bad.yaml:1:9: unclosed bracket '['
/d.yaml:1:9: domain \"three\" is already defined by /c.yaml
/d.yaml:2:21: `key` is required and must not be empty
6 errors in the limits";
    assert_eq!(text, expected);
    let first = &errors.0[0];
    assert_eq!((first.file.as_path(), first.position), (&*dir.path().join("a.yaml"), Some((3, 8))));
    assert_eq!(first.message, "`key` is required and must not be empty");
}

#[test]
fn unreadable_files_are_named() {
    let dir = directory(&[("limits.yaml", "x")]);
    let missing = load_dir(&dir.path().join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("none.yaml: cannot read: No such file"), "{missing}");
    std::fs::write(dir.path().join("limits.yaml"), b"domain: d\n# \xc3\xa9 \xff").unwrap();
    let errors = load_dir(dir.path()).unwrap_err();
    assert_eq!(without(dir.path(), &errors.0[0]), "limits.yaml:2:5: this is not UTF-8");
    let empty = load_dir(directory(&[]).path()).unwrap_err().to_string();
    assert!(empty.contains("no *.yaml, *.yml or *.xml file in this directory"), "{empty}");
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let dir = directory(&[]);
    let file = std::fs::File::create(dir.path().join("limits.yaml")).unwrap();
    // A sparse file, which takes no space on the disk.
    file.set_len(64 * 1024 * 1024 + 1).unwrap();
    let errors = load_dir(dir.path()).unwrap_err();
    let expected = "limits.yaml: more than 67108864 bytes; split the file";
    assert_eq!(without(dir.path(), &errors.0[0]), expected);
}

/// A mounted ConfigMap: `..data` is a link to a directory whose name changes with every version, and the
/// files are links through it.
#[cfg(unix)]
#[test]
fn a_mounted_config_map_is_read() {
    use std::os::unix::fs::symlink;
    let dir = directory(&[]);
    let version = dir.path().join("..2026_11_21");
    std::fs::create_dir(&version).unwrap();
    std::fs::write(version.join("shop.yaml"), "domain: shop\n").unwrap();
    symlink("..2026_11_21", dir.path().join("..data")).unwrap();
    symlink("..data/shop.yaml", dir.path().join("shop.yaml")).unwrap();
    std::fs::create_dir(dir.path().join("more")).unwrap();
    let loaded = load_dir(dir.path()).unwrap();
    assert_eq!(loaded.rules.domain_names(), ["shop"]);
    // Also if the mounted directory itself is a link.
    let link = dir.path().join("link");
    symlink("..data", &link).unwrap();
    assert_eq!(load_dir(&link).unwrap().rules.domain_names(), ["shop"]);
    symlink("..data/gone.yaml", dir.path().join("gone.yaml")).unwrap();
    let errors = load_dir(dir.path()).unwrap_err().to_string();
    assert!(errors.contains("gone.yaml: cannot read: No such file"), "{errors}");
}

/// A FIFO named like a limits file blocked its reader for ever, and an endless device was read until memory
/// ran out, because every matching name was opened. Now only regular files are.
#[test]
fn only_regular_files_of_a_directory_are_read() {
    use std::os::unix::fs::symlink;
    let check = |expected: &str, make: &dyn Fn(&Path)| {
        let dir = directory(&[("a.yaml", "domain: a\n")]);
        make(&dir.path().join("z.yaml"));
        let errors = load_dir(dir.path()).unwrap_err();
        assert_eq!(errors.0.len(), 1, "{errors}");
        assert_eq!(without(dir.path(), &errors.0[0]), format!("z.yaml: {expected}"));
    };
    check("is a FIFO, not a file", &make_fifo);
    check("is a device, not a file", &|at| symlink("/dev/zero", at).unwrap());
    check("is a directory, not a file", &|at| std::fs::create_dir(at).unwrap());
    check("is a socket, not a file", &|at| {
        std::os::unix::net::UnixListener::bind(at).unwrap();
    });
}

/// The argument of `tidegate check <(command)`.
#[test]
fn a_pipe_is_read_where_it_is_named_itself() {
    let dir = directory(&[]);
    let path = dir.path().join("pipe");
    make_fifo(&path);
    std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&path, "domain: piped\n").unwrap());
        assert_eq!(load_dir(&path).unwrap().rules.domain_names(), ["piped"]);
    });
    // Nobody writes to it now, so reading it would block.
    let source = crate::Source::read(&path, crate::Pipes::Refuse);
    assert_eq!(source.unreadable(), Some("is a FIFO, not a file"));
}

#[test]
fn files_are_bounded_together() {
    let dir = directory(&[]);
    for name in ["a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml"] {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(if name == "e.yaml" { 1 } else { 64 * 1024 * 1024 }).unwrap();
    }
    // The parts are dropped one by one; only the refusals matter here.
    let mut refused = Vec::new();
    crate::each_file(dir.path(), crate::Pipes::Refuse, |file| {
        refused.extend(file.bytes.err());
    })
    .unwrap();
    assert_eq!(refused, ["this file and those before it have more than 268435456 bytes"]);
}

fn make_fifo(at: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

//! A process in a root of its own, as in the container that Envoy Gateway runs: nothing is writable, nobody is user
//! 65534, and nothing is there but the program, its libraries and certificates.

use crate::{artifacts, not_run};
use anyhow::{Context, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Makes the mounts and gives up all rights: `sh -ec SCRIPT sh ROOT NAME=VALUE...`. The process stays the same one.
const SCRIPT: &str = "\
root=$1; shift
mount --make-rprivate /
mount --bind \"$root\" \"$root\"
for file in null urandom; do mount --bind /dev/$file \"$root/dev/$file\"; done
mount --rbind /proc \"$root/proc\"
mount -o remount,bind,ro \"$root\"
exec env -i \"$@\" chroot --userspec=65534:65534 --groups= \"$root\" /bin/ratelimit";

/// A directory that will be the root of a process.
#[derive(Debug)]
pub struct BareRoot(PathBuf);

impl BareRoot {
    /// Makes one in `dir`, whose host `envoy-gateway` is this machine.
    ///
    /// # Errors
    /// When this user may not, or a file cannot be copied.
    pub fn create(dir: &Path) -> anyhow::Result<BareRoot> {
        not_run::root()?;
        let root = dir.join("root");
        for folder in ["bin", "certs", "dev", "etc", "proc"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        for device in ["null", "urandom"] {
            fs::write(root.join("dev").join(device), "")?;
        }
        fs::write(root.join("etc/hosts"), "127.0.0.1 localhost envoy-gateway\n")?;
        let program = artifacts::sidecar()?;
        fs::copy(&program, root.join("bin/ratelimit"))?;
        for library in libraries(&program)? {
            let to = root.join(library.strip_prefix("/")?);
            fs::create_dir_all(to.parent().context("a library at the root")?)?;
            fs::copy(&library, to)?;
        }
        Ok(BareRoot(root))
    }

    /// A path on this machine for one in the root.
    #[must_use]
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Runs `/bin/ratelimit` without arguments, with this environment and `PATH`.
    #[must_use]
    pub fn command(&self, environment: &[(&str, String)]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", SCRIPT, "sh"]).arg(&self.0);
        command.arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
        command
    }
}

/// The libraries that a program loads, by ldd.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let ran = std::process::Command::new("ldd").arg(program).output()?;
    let listed = String::from_utf8(ran.stdout)?;
    let found: Vec<PathBuf> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    // A static program needs none.
    ensure!(ran.status.success() || found.is_empty(), "ldd {}: {listed}", program.display());
    Ok(found)
}

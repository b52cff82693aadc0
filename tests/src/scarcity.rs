//! Little memory: a control group with a limit, and a tmpfs with a size, as a container has them. Both take
//! root and a machine that lets it.

use anyhow::{Context, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Blocking;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::process::Command;

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// A name that no other test has.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("tidegate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A control group that limits memory, which goes away when dropped: its processes must have ended.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group with a limit of this many bytes, below the highest that this machine has.
    ///
    /// # Errors
    /// When the machine has none, or we may not.
    pub fn new(bytes: u64) -> anyhow::Result<MemoryGroup> {
        let (parent, limit) = if Path::new(V1).join("memory.limit_in_bytes").exists() {
            (V1, "memory.limit_in_bytes")
        } else {
            let controllers = fs::read_to_string(Path::new(V2).join("cgroup.controllers"));
            let controllers = controllers.context("no cgroups here")?;
            ensure!(
                controllers.split_whitespace().any(|name| name == "memory"),
                "no cgroup has memory"
            );
            let subtree = Path::new(V2).join("cgroup.subtree_control");
            fs::write(&subtree, "+memory").with_context(|| subtree.display().to_string())?;
            (V2, "memory.max")
        };
        let path = Path::new(parent).join(name());
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        let group = MemoryGroup(path);
        fs::write(group.0.join(limit), bytes.to_string()).context("no limit can be set")?;
        Ok(group)
    }

    /// A command that runs `program` in this group, under the process id that it is started with.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    /// How many bytes count against the limit now.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn used(&self) -> anyhow::Result<u64> {
        for file in ["memory.usage_in_bytes", "memory.current"] {
            if let Ok(used) = fs::read_to_string(self.0.join(file)) {
                return Ok(used.trim().parse()?);
            }
        }
        bail!("{} does not say how much is used", self.0.display())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            println!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// A tmpfs of a certain size, which goes away when dropped.
#[derive(Debug)]
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// One of this many bytes, mounted at the new `directory`.
    ///
    /// # Errors
    /// When we may not.
    pub fn new(directory: &Path, bytes: u64) -> anyhow::Result<Tmpfs> {
        fs::create_dir(directory)?;
        let size = format!("size={bytes}");
        let mount = Blocking::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(directory)
            .output()?;
        let said = String::from_utf8_lossy(&mount.stderr);
        ensure!(mount.status.success(), "a tmpfs cannot be mounted: {}", said.trim());
        Ok(Tmpfs(directory.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily, as a process that was just killed may still be there.
        let unmounted = Blocking::new("umount").arg("--lazy").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            println!("{} is left mounted", self.0.display());
        }
    }
}

//! A disk of its own: a file system in a file, which can be frozen as a volume snapshot does it. Takes root and a
//! machine that lets it.

use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system, which goes away when dropped.
#[derive(Debug)]
pub struct Disk(PathBuf);

/// A file system that writes nothing until this is dropped: whoever writes waits.
#[derive(Debug)]
pub struct Frozen<'a>(&'a Disk);

impl Disk {
    /// A disk of this many bytes, mounted at the new `directory`, in a file beside it.
    ///
    /// # Errors
    /// When we may not, or the machine has no loop devices.
    pub fn new(directory: &Path, bytes: u64) -> anyhow::Result<Disk> {
        let image = directory.with_extension("image");
        std::fs::create_dir(directory)?;
        std::fs::File::create(&image)?.set_len(bytes)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(directory))?;
        Ok(Disk(directory.to_owned()))
    }

    /// Stops all writes.
    ///
    /// # Errors
    /// When we may not.
    pub fn freeze(&self) -> anyhow::Result<Frozen<'_>> {
        run(Command::new("fsfreeze").arg("--freeze").arg(&self.0))?;
        Ok(Frozen(self))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("fsfreeze").arg("--unfreeze").arg(&self.0.0)) {
            println!("{} is left frozen: {error:#}", self.0.0.display());
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, as a process that was just killed may still be there.
        if let Err(error) = run(Command::new("umount").arg("--lazy").arg(&self.0)) {
            println!("{} is left mounted: {error:#}", self.0.display());
        }
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}

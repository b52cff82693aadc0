//! Child processes: this test binary itself, which the environment makes run one test in another role.
//!
//! A child does not return into the test harness: its test ends with [`leave`], a signal or a panic.

use std::env;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};

use super::not_run;

const CHILD_ROLE: &str = "TIDEGATE_STORE_TEST_CHILD_ROLE";
const CHILD_DIR: &str = "TIDEGATE_STORE_TEST_CHILD_DIR";

/// The role of this process, and the directory of its cluster, if it is a child.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((env::var(CHILD_ROLE).ok()?, env::var_os(CHILD_DIR)?.into()))
}

/// Ends this process, a child that has done its task.
pub(crate) fn leave() -> ! {
    process::exit(0)
}

/// Sends a line to the parent.
pub(crate) fn say(line: &str) {
    io::stdout().write_all(format!("\n@{line}\n").as_bytes()).unwrap();
}

/// Waits until the parent sends a line. Ends this process if the parent has died.
pub(crate) fn hear() {
    if io::stdin().read(&mut [0]).unwrap() == 0 {
        process::exit(1);
    }
}

pub(crate) fn raise(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

/// A child. Killed when dropped.
pub(crate) struct Child {
    child: process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The command that runs the test `test` in a child.
pub(crate) fn command(test: &str, role: &str, dir: &Path) -> Command {
    of_program(&env::current_exe().unwrap(), test, role, dir)
}

fn of_program(program: &Path, test: &str, role: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_ROLE, role)
        .env(CHILD_DIR, dir);
    command
}

/// User and group `nobody`.
const NOBODY: u32 = 65_534;

/// Runs `body`, the whole of the test `test`, as a user with no special rights: here, or, as nothing is forbidden
/// to root, in a child that is another user.
#[track_caller]
pub(crate) fn without_root(test: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        body();
        if role().is_some() {
            say("done");
            leave();
        }
        return;
    }
    // Found through the process itself, as the place where programs are built may be closed to others.
    let mut child = of_program(Path::new("/proc/self/exe"), test, "without root", Path::new("/"));
    match child.uid(NOBODY).gid(NOBODY).current_dir("/").stderr(Stdio::inherit()).output() {
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("@done"), "{}: {said}", ran.status);
        }
        // A user namespace may have no second user, or no right to become it.
        Err(error)
            if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied) =>
        {
            not_run(test, "a user besides root");
        }
        Err(error) => panic!("{test} as user {NOBODY}: {error}"),
    }
}

impl Child {
    pub(crate) fn spawn(test: &str, role: &str, dir: &Path) -> Self {
        Self::of(&mut command(test, role, dir))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line from the child; none if it has ended.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(said) = line.trim_end().strip_prefix('@') {
                return Some(said.to_owned());
            }
        }
    }

    /// Waits for this line from the child.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) {
        assert_eq!(self.next_line().as_deref(), Some(expected));
    }

    /// Tells the child to continue.
    pub(crate) fn tell(&mut self) {
        self.input.write_all(b".").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until the child is stopped.
    pub(crate) fn wait_until_stopped(&self) {
        let (_, status): (Pid, WaitStatus) =
            waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn kill(&mut self) -> ExitStatus {
        self.child.kill().unwrap();
        self.child.wait().unwrap()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

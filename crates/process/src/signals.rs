//! The signals that a daemon answers.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Heard from before the first door opens.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Asked for while only a stop was waited for.
    is_reload_asked: bool,
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To drain and end: SIGTERM, SIGINT
    Stop,
    /// To read the limits again: SIGHUP
    Reload,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            is_reload_asked: false,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Asked {
        if std::mem::take(&mut self.is_reload_asked) {
            return Asked::Reload;
        }
        self.heard().await
    }

    async fn heard(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }

    /// Waits for one that says to stop. What else is asked for is told by the next [`Signals::next`].
    pub(crate) async fn stop(&mut self) {
        while self.heard().await != Asked::Stop {
            self.is_reload_asked = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpid, kill_process};
    use std::time::Duration;

    /// Limits that were changed while the workers started were not read.
    #[tokio::test]
    async fn a_reload_that_is_asked_for_before_serving_is_not_forgotten() {
        let mut signals = Signals::listen().unwrap();
        let mut heard = signal(SignalKind::hangup()).unwrap();
        kill_process(getpid(), rustix::process::Signal::HUP).unwrap();
        heard.recv().await.unwrap();
        tokio::select! {
            biased;
            () = signals.stop() => panic!("nobody said to stop"),
            () = std::future::ready(()) => {}
        }
        let asked = tokio::time::timeout(Duration::from_secs(60), signals.next()).await;
        assert_eq!(asked, Ok(Asked::Reload));
    }
}

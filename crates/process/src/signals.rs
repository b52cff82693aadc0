//! The signals that end or reload a service.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Subscribed to before the first socket listens, so that no signal is lost.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// A reload was requested while [`Signals::stop`] waited.
    is_reload_pending: bool,
}

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Drain and exit: SIGTERM, SIGINT
    Stop,
    /// Read the limits again: SIGHUP
    Reload,
}

impl Signals {
    pub(crate) fn subscribe() -> anyhow::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            is_reload_pending: false,
        })
    }

    pub(crate) async fn next(&mut self) -> Action {
        if std::mem::take(&mut self.is_reload_pending) {
            return Action::Reload;
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Action {
        tokio::select! {
            _ = self.terminate.recv() => Action::Stop,
            _ = self.interrupt.recv() => Action::Stop,
            _ = self.hangup.recv() => Action::Reload,
        }
    }

    /// Waits for a signal to stop. A reload requested meanwhile is returned by the next [`Signals::next`].
    pub(crate) async fn stop(&mut self) {
        while self.receive().await != Action::Stop {
            self.is_reload_pending = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpid, kill_process};
    use std::time::Duration;

    /// Regression: limits changed while the workers started were not read.
    #[tokio::test]
    async fn a_reload_requested_before_serving_is_kept() {
        let mut signals = Signals::subscribe().unwrap();
        let mut heard = signal(SignalKind::hangup()).unwrap();
        kill_process(getpid(), rustix::process::Signal::HUP).unwrap();
        heard.recv().await.unwrap();
        tokio::select! {
            biased;
            () = signals.stop() => panic!("no signal to stop was sent"),
            () = std::future::ready(()) => {}
        }
        let action = tokio::time::timeout(Duration::from_secs(60), signals.next()).await;
        assert_eq!(action, Ok(Action::Reload));
    }
}

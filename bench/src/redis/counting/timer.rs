//! A timer for parts of a millisecond, which tokio's own timers round up to.

use std::io;
use std::time::Duration;

#[cfg(target_os = "linux")]
pub(super) use precise::Timer;

#[cfg(not(target_os = "linux"))]
pub(super) use rounded::Timer;

#[cfg(target_os = "linux")]
mod precise {
    use super::{Duration, io};
    use rustix::fd::AsFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe::Receiver;

    /// A timer of the kernel. It is read as a pipe is.
    #[derive(Debug)]
    pub(crate) struct Timer(Receiver);

    impl Timer {
        pub(crate) fn new() -> io::Result<Timer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Ok(Timer(Receiver::from_owned_fd_unchecked(timer)?))
        }

        /// Waits this long.
        pub(crate) async fn wait(&mut self, time: Duration) -> io::Result<()> {
            if time.is_zero() {
                return Ok(());
            }
            let once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Timespec {
                tv_sec: time.as_secs().cast_signed(),
                tv_nsec: time.subsec_nanos().into(),
            };
            let when = Itimerspec { it_interval: once, it_value: value };
            timerfd_settime(self.0.as_fd(), TimerfdTimerFlags::empty(), &when)?;
            loop {
                self.0.readable().await?;
                match self.0.try_read(&mut [0; 8]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read.map(|_| ()),
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod rounded {
    use super::{Duration, io};

    /// A timer of tokio.
    #[derive(Debug)]
    pub(crate) struct Timer;

    impl Timer {
        pub(crate) fn new() -> io::Result<Timer> {
            Ok(Timer)
        }

        /// Waits at least this long.
        pub(crate) async fn wait(&mut self, time: Duration) -> io::Result<()> {
            tokio::time::sleep(time).await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn it_waits_again_and_again_and_not_at_all() -> io::Result<()> {
        let mut timer = Timer::new()?;
        for micros in [200, 0, 1_500, 200] {
            let time = Duration::from_micros(micros);
            let begun = Instant::now();
            timer.wait(time).await?;
            assert!(begun.elapsed() >= time);
        }
        Ok(())
    }
}

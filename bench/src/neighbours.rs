//! The share of the machine that other processes used during a measurement. A large share makes figures of
//! several threads meaningless.

use anyhow::Context;

/// Larger shares cause a warning.
const SHARE_MAX: f64 = 0.05;

/// CPU time so far, in clock ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbours {
    /// All cores, idle or busy.
    all: u64,
    /// All cores, busy.
    busy: u64,
    /// This process and its terminated children.
    own: u64,
}

impl Neighbours {
    /// Starts the observation.
    pub(crate) fn watch() -> anyhow::Result<Neighbours> {
        let machine = std::fs::read_to_string("/proc/stat")?;
        let process = std::fs::read_to_string("/proc/self/stat")?;
        parse(&machine, &process).context("cannot read CPU times in /proc")
    }

    /// Returns the share of all cores' time that others used since the start, and warns if it is large.
    pub(crate) fn report(&self) -> anyhow::Result<f64> {
        let share = self.share_until(&Neighbours::watch()?);
        if share > SHARE_MAX {
            let percent = share * 100.0;
            println!(
                "Others used {percent:.0} % of this machine meanwhile: take figures with care.\n"
            );
        }
        Ok(share)
    }

    fn share_until(&self, later: &Neighbours) -> f64 {
        let others = (later.busy - self.busy).saturating_sub(later.own - self.own);
        others as f64 / (later.all - self.all).max(1) as f64
    }
}

fn parse(machine: &str, process: &str) -> Option<Neighbours> {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        text.split_whitespace().map(|number| number.parse().ok()).collect()
    };
    // cpu user nice system idle iowait irq softirq steal guest guest_nice; user includes guest.
    let cores = numbers(machine.lines().next()?.strip_prefix("cpu ")?)?;
    let cores = cores.get(..8)?;
    let all: u64 = cores.iter().sum();
    let idle = cores.get(3..5)?.iter().sum::<u64>();
    // The fields follow the name, which is in parentheses: the 12th to 15th are utime, stime,
    // cutime and cstime.
    let fields = process.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    let own = numbers(&fields.collect::<Vec<_>>().join(" "))?;
    Some(Neighbours { all, busy: all - idle, own: own.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_own_is_of_others() {
        let process = |ticks: u32| format!("1 (a b) c) R 0 0 0 0 0 0 0 0 0 0 {ticks} 1 2 3 0 0");
        let before = parse("cpu  100 0 0 1000 0 0 0 0 0 0\ncpu0 1", &process(10)).unwrap();
        let after = parse("cpu  150 0 10 1100 20 0 0 20 0 0\ncpu0 1", &process(50)).unwrap();
        // Of 200 ticks, 120 were idle, and 40 of the other 80 belong to this process.
        assert_eq!(before.share_until(&after), 0.2);
    }

    #[test]
    fn this_system_is_understood() {
        let now = Neighbours::watch().unwrap();
        assert!(now.all >= now.busy);
    }
}

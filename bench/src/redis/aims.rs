//! The aims of the suite beside what was measured.

use super::Plan;
use super::case::Keys;
use super::figures::{CaseFigures, Figures};
use super::server::Software;

/// Prints each aim for which figures were measured.
pub(super) fn print(plan: &Plan, measured: &[CaseFigures]) {
    for aim in lines(plan, measured) {
        println!("{aim}");
    }
    println!();
}

fn lines(plan: &Plan, measured: &[CaseFigures]) -> Vec<String> {
    let mut lines = Vec::new();
    for figures in measured {
        let Some(ours) = figures.of(Software::Shared) else { continue };
        match figures.case.keys {
            Keys::Cold => cold(figures, ours, &mut lines),
            Keys::Hot(keys) if keys == plan.hot_keys => hot(figures, ours, &mut lines),
            Keys::Hot(_) => {}
        }
        if figures.case.keys != Keys::Cold
            && let Some(floor) = figures.of(Software::Local)
        {
            let above = (ours.p99 - floor.p99) / 1e3;
            let name = &figures.case.name;
            lines.push(format!(
                "{name}: p99 above the own store's by {above:.2} ms (aim: at most 0.2)"
            ));
        }
    }
    lines
}

fn hot(figures: &CaseFigures, ours: &Figures, lines: &mut Vec<String>) {
    let name = &figures.case.name;
    let commands = ours.commands;
    lines.push(format!("{name}: {commands:.4} commands a decision (aim: at most 0.02)"));
    if let Some(peer) = figures.of(Software::Counting) {
        let share = ours.redis_micros / peer.redis_micros;
        lines.push(format!(
            "{name}: CPU of Redis a decision, {share:.3} of that of INCRBY and EXPIRE (aim: at most 0.05)"
        ));
    }
}

fn cold(figures: &CaseFigures, ours: &Figures, lines: &mut Vec<String>) {
    let name = &figures.case.name;
    let scripts = ours.scripts;
    lines.push(format!("{name}: {scripts:.2} scripts a decision (aim: at most 1)"));
    if let Some(peer) = figures.of(Software::Limitador) {
        let times = ours.rate / peer.rate;
        lines.push(format!(
            "{name}: {times:.1} times the decisions a second of {} (aim: at least 5)",
            Software::Limitador.name()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{FULL, case};

    #[test]
    fn each_aim_is_beside_its_figure() {
        let figures = |rate, commands, redis_micros, p99| Figures {
            rate,
            decided: 1.0,
            service_micros: 3.0,
            redis_micros,
            commands,
            scripts: commands,
            p50: 100.0,
            p99,
        };
        let measured: Vec<CaseFigures> = case::all(&FULL)
            .into_iter()
            .map(|case| CaseFigures {
                case,
                figures: vec![
                    (Software::Shared, figures(60_000.0, 0.01, 0.04, 450.0)),
                    (Software::Counting, figures(50_000.0, 2.0, 1.0, 900.0)),
                    (Software::Limitador, figures(6_000.0, 4.0, 9.0, 9_000.0)),
                    (Software::Local, figures(90_000.0, 0.0, 0.0, 350.0)),
                ],
            })
            .collect();
        let expected = [
            "1000 hot keys, 100000 a second: 0.0100 commands a decision (aim: at most 0.02)",
            "1000 hot keys, 100000 a second: CPU of Redis a decision, 0.040 of that of INCRBY and EXPIRE (aim: at most 0.05)",
            "1000 hot keys, 100000 a second: p99 above the own store's by 0.10 ms (aim: at most 0.2)",
            "one hot key, 100000 a second: p99 above the own store's by 0.10 ms (aim: at most 0.2)",
            "50 hot keys, 5000 a second: p99 above the own store's by 0.10 ms (aim: at most 0.2)",
            "cold keys: 0.01 scripts a decision (aim: at most 1)",
            "cold keys: 10.0 times the decisions a second of limitador redis (aim: at least 5)",
        ];
        assert_eq!(lines(&FULL, &measured), expected);
    }
}

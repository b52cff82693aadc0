//! Counts that the store keeps itself, read for each snapshot.

use crate::snapshot::{Family, Kind, Number, Samples, labels};
use tidegate_store::{Class, Cluster, Occupancy};

/// How long threads of this process have waited for others.
pub(crate) fn blocked_seconds(store: &Cluster) -> Family {
    let help = "Time that threads waited for locks of other threads and processes";
    let seconds = Number::Real(store.blocked_time().as_secs_f64());
    Family::single("blocked_seconds", help, Kind::Counter, seconds)
}

/// What the store counts for all processes.
pub(crate) fn families(store: &Cluster) -> Vec<Family> {
    let count = |(name, value)| {
        let name = format!("store_{name}");
        let help = store_help(&name);
        Family::single(name, help, Kind::Counter, Number::Whole(value))
    };
    let mut families: Vec<Family> = store.stats().named().into_iter().map(count).collect();
    let gauges = [
        (
            "clock_ahead_seconds",
            "Seconds that the system clock is ahead of time known to have passed; 0 while it is trusted",
            tidegate_data_dir::clock_ahead_secs(store),
        ),
        (
            "store_stuck_processes",
            "Processes that hold locks of counters and do not move",
            tidegate_data_dir::stuck(store).len() as u64,
        ),
        (
            "store_unsaved_seconds",
            "Seconds since the last snapshot was complete, or since the start",
            store.unsaved_for().as_secs(),
        ),
    ];
    families.extend(
        gauges.map(|(name, help, value)| {
            Family::single(name, help, Kind::Gauge, Number::Whole(value))
        }),
    );
    families.extend(occupancy_families(store));
    families
}

fn occupancy_families(store: &Cluster) -> [Family; 3] {
    let occupancies: Vec<(&str, Occupancy)> = Class::ALL
        .into_iter()
        .filter_map(|class| Some((class.name(), store.occupancy(class)?)))
        .collect();
    let by_class = |value: fn(&Occupancy) -> u64| -> Samples {
        let sample = |(class, occupancy): &(&str, Occupancy)| {
            (labels([("class", class)]), Number::Whole(value(occupancy)))
        };
        occupancies.iter().map(sample).collect()
    };
    let chains = occupancies.iter().flat_map(|(class, occupancy)| {
        occupancy.chains.iter().enumerate().map(|(length, count)| {
            let labels = labels([("class", *class), ("length", &length.to_string())]);
            (labels, Number::Whole(*count))
        })
    });
    let help = "Key-nodes by how many of their nodes have a counter, of those looked at";
    [
        ("store_nodes", "Nodes that there are", by_class(|occupancy| occupancy.nodes)),
        (
            "store_occupied",
            "Nodes with a counter, live or expired",
            by_class(|occupancy| occupancy.occupied),
        ),
        ("store_chains", help, chains.collect()),
    ]
    .map(|(name, help, samples)| Family::new(name, help, Kind::Gauge, samples))
}

/// The meaning of a count of the store. All of them count since the data directory was created, over
/// all processes.
pub fn store_help(name: &str) -> &'static str {
    match name {
        "store_updates" => "Counters written",
        "store_created" => "Counters created",
        "store_evicted_expired" => "Expired counters whose node was reused",
        "store_evicted_live" => "Live counters evicted by new ones",
        "store_erased" => "Counters erased",
        "store_refused" => "Updates refused for lack of a node",
        "store_dropped_torn" => "Torn or damaged nodes dropped on open",
        "store_dropped_foreign" => "Misplaced nodes dropped on open",
        "store_dropped_duplicate" => "Second nodes of a key dropped on open",
        "store_recovered" => "Killed threads that were cleaned up after",
        "store_completed" => "Updates of killed threads that were completed",
        _ => "A count of the store",
    }
}

//! The descriptors of a request by its virtual host and route.

use super::fact_reader::FactReader;
use super::matches;
use crate::config::{ByName, Fact, NOTHING, OF_OTHER_HOSTS, RateLimit, VirtualHost, VirtualHosts};
use crate::host::RequestFacts;
use crate::request::descriptors::Descriptors;

/// The lists that apply to the current request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Progress {
    #[default]
    NotFound,
    /// What applies, and the next list of it.
    Found { applicable: usize, list: usize },
}

/// The next of the lists that apply to a request.
#[cold]
#[inline(never)]
pub(super) fn next_list<'c, F: RequestFacts>(
    blocks: &'c VirtualHosts,
    reader: &mut FactReader<'_, F>,
) -> Option<&'c [RateLimit]> {
    let (applicable, list) = match *reader.progress() {
        Progress::Found { applicable, list } => (applicable, list),
        Progress::NotFound => (find_applicable(blocks, reader), 0),
    };
    *reader.progress() = Progress::Found { applicable, list: list.saturating_add(1) };
    blocks.list(applicable, list)
}

/// Ends a request: gives its descriptors the mark of their domain, unless it is the filter's.
#[cold]
#[inline(never)]
pub(super) fn finish<F: RequestFacts>(
    blocks: &VirtualHosts,
    reader: &mut FactReader<'_, F>,
    seed: u64,
    enforced: &mut Descriptors,
    shadowed: &mut Descriptors,
) {
    let progress = std::mem::take(reader.progress());
    let Progress::Found { applicable, .. } = progress else { return };
    if let Some(mark) = blocks.domain(applicable) {
        enforced.mark_all(mark, seed);
        shadowed.mark_all(mark, seed);
    }
}

/// The index of what applies to a request, by the names of its virtual host and its route.
fn find_applicable<F: RequestFacts>(
    blocks: &VirtualHosts,
    reader: &mut FactReader<'_, F>,
) -> usize {
    let applicable = match find(&blocks.hosts, &blocks.host, reader) {
        None => OF_OTHER_HOSTS,
        Some(host) => of_host(blocks, host, reader),
    };
    // As Envoy's own filter: a request that Envoy answers itself is not limited.
    match blocks.has_entries(applicable) && reader.value(&blocks.cluster).is_some() {
        true => applicable,
        false => NOTHING,
    }
}

fn of_host<F: RequestFacts>(
    blocks: &VirtualHosts,
    host: &VirtualHost,
    reader: &mut FactReader<'_, F>,
) -> usize {
    if host.routes.is_empty() {
        return host.otherwise;
    }
    // A route without a name has no such property.
    let route = match reader.value(&blocks.route) {
        None => host.routes.named(b""),
        Some(_) => find(&host.routes, &blocks.route, reader),
    };
    route.copied().unwrap_or(host.otherwise)
}

fn find<'c, T, F: RequestFacts>(
    items: &'c ByName<T>,
    name: &Fact,
    reader: &mut FactReader<'_, F>,
) -> Option<&'c T> {
    let named = items.named(reader.value(name)?);
    named.or_else(|| items.matched(|matcher| matches(matcher, name, reader)))
}

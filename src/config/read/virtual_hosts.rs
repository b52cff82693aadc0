//! The lists of entries: the filter's own, and those of virtual hosts and routes.
//!
//! As in Envoy's own filter, the first of these that is there applies to a request:
//! 1. `per_route.rate_limits` of its route, or of its virtual host if the route has no `per_route`;
//! 2. the filter's own `rate_limits`;
//! 3. those of its route, then those of its virtual host, as `vh_rate_limits` says.
//!
//! A list is there if it has an entry of any stage.

use super::checks::{at_most, items_up_to, not_empty, some_items};
use super::matcher::{NameTest, name_test};
use super::rate_limit::rate_limit;
use super::{enforcement, stage, variant};
use crate::config::denied::ReplyContent;
use crate::config::encoded::{Encoded, domain_mark};
use crate::config::interner::Interner;
use crate::config::node::Node;
use crate::config::rate_limit::{Enforcement, HitsAddend, RateLimit};
use crate::config::unsupported::{OF_A_PER_ROUTE, OF_A_ROUTE, OF_A_VIRTUAL_HOST};
use crate::config::virtual_hosts::{Applicable, ByName, VirtualHost, VirtualHosts};
use crate::config::{ConfigError, LateCharge};
use crate::request::descriptors::hits_of_late;
use tidegate_wire::DESCRIPTORS_MAX;

/// The most entries of all lists, and the most virtual hosts and routes: some 2 MB in each worker.
const ENTRIES_MAX: usize = 1_024;
const BLOCKS_MAX: usize = 1_024;

/// All entries of a configuration.
pub(super) struct Lists {
    /// The filter's own; none if there are virtual hosts, which have them then.
    pub(super) rate_limits: Vec<RateLimit>,
    pub(super) virtual_hosts: Option<Box<VirtualHosts>>,
    pub(super) late_charges: Vec<LateCharge>,
}

pub(super) fn limits(
    filter: &Node<'_>,
    denials: &ReplyContent,
    interner: &mut Interner,
    others: Interner,
) -> Result<Lists, ConfigError> {
    let stage = stage(filter)?;
    let mut reader = Reader {
        denials,
        interner,
        others,
        stage,
        enforcement: enforcement(filter)?,
        // The first one is the list of all that have none.
        lists: vec![Vec::new()],
        applicable: Vec::new(),
        late_charges: Vec::new(),
        entries: 0,
        blocks: 0,
    };
    let Some(hosts) = filter.field("virtual_hosts") else {
        let own = filter.required("rate_limits")?;
        items_up_to(&own, DESCRIPTORS_MAX)?;
        let own = reader.list(filter)?;
        return match reader.lists.pop() {
            Some(rate_limits) if own.index > 0 && !rate_limits.is_empty() => {
                Ok(Lists { rate_limits, virtual_hosts: None, late_charges: reader.late_charges })
            }
            _ => Err(filter.at("rate_limits").error(&no_entry(stage))),
        };
    };
    let own = reader.list(filter)?;
    // `NOTHING` and `OF_OTHER_HOSTS`.
    for list in [NONE, own] {
        let lists = [list.index, NONE.index];
        reader.applicable.push(Applicable { lists, domain: None });
    }
    let hosts_read = reader.virtual_hosts(&hosts, own)?;
    if reader.entries == 0 {
        return Err(hosts.error("no virtual host or route has `rate_limits`"));
    }
    if reader.lists.iter().all(Vec::is_empty) {
        return Err(hosts.error(&no_entry(stage)));
    }
    let Reader { lists, applicable, late_charges, interner, .. } = reader;
    let blocks = VirtualHosts {
        host: interner.property(&["xds", "virtual_host_name"]),
        route: interner.property(&["xds", "route_name"]),
        cluster: interner.property(&["xds", "cluster_name"]),
        hosts: hosts_read,
        applicable,
        lists,
    };
    Ok(Lists { rate_limits: Vec::new(), virtual_hosts: Some(Box::new(blocks)), late_charges })
}

fn no_entry(stage: u32) -> String {
    format!("no entry has the stage {stage}")
}

/// A list that was read.
#[derive(Clone, Copy)]
struct List {
    index: usize,
    /// Whether it has an entry, if only of another stage.
    is_there: bool,
}

const NONE: List = List { index: 0, is_there: false };

/// How a route's list and its virtual host's go together.
#[derive(Clone, Copy)]
enum VhRateLimits {
    /// The route's, or else the host's.
    Override,
    /// Both.
    Include,
    /// The route's.
    Ignore,
}

/// Envoy's `RateLimitPerRoute`.
struct PerRoute {
    list: List,
    vh_rate_limits: VhRateLimits,
    domain: Option<Encoded>,
}

struct Reader<'i> {
    /// The content of denials by other rules.
    denials: &'i ReplyContent,
    interner: &'i mut Interner,
    others: Interner,
    stage: u32,
    enforcement: Enforcement,
    lists: Vec<Vec<RateLimit>>,
    applicable: Vec<Applicable>,
    late_charges: Vec<LateCharge>,
    entries: usize,
    blocks: usize,
}

impl Reader<'_> {
    /// The `rate_limits` of a filter, a virtual host or a route. Entries of other stages are
    /// validated, too, but requests do not pay for them.
    fn list(&mut self, block: &Node<'_>) -> Result<List, ConfigError> {
        let Some(list) = block.field("rate_limits") else { return Ok(NONE) };
        let items = at_most(&list, DESCRIPTORS_MAX)?;
        if items.is_empty() {
            return Ok(NONE);
        }
        self.entries = self.entries.saturating_add(items.len());
        if self.entries > ENTRIES_MAX {
            let entries = self.entries;
            let message =
                format!("up to here, {entries} entries are too many (maximum {ENTRIES_MAX})");
            return Err(list.error(&message));
        }
        let mut valid = Vec::new();
        for item in &items {
            let is_own = stage(item)? == self.stage;
            let interner = if is_own { &mut *self.interner } else { &mut self.others };
            let (mut entry, charge) = rate_limit(item, self.denials, interner)?;
            if self.enforcement == Enforcement::Shadow {
                entry.enforcement = Enforcement::Shadow;
            }
            if !is_own {
                continue;
            }
            if let Some(charge) = charge {
                entry.hits = HitsAddend::Number(hits_of_late(self.late_charges.len()));
                self.late_charges.push(charge);
            }
            valid.push(entry);
        }
        let index = self.lists.len();
        self.lists.push(valid);
        Ok(List { index, is_there: true })
    }

    fn virtual_hosts(
        &mut self,
        node: &Node<'_>,
        own: List,
    ) -> Result<ByName<VirtualHost>, ConfigError> {
        let mut hosts = ByName::default();
        for item in &some_items(node)? {
            item.object(
                "an object with `name`",
                &["name", "rate_limits", "per_route", "routes"],
                &OF_A_VIRTUAL_HOST,
            )?;
            let name = name_test(&item.required("name")?, self.interner)?;
            let host = self.virtual_host(item, own)?;
            self.add(&mut hosts, name, host, item)?;
        }
        Ok(hosts)
    }

    fn virtual_host(&mut self, node: &Node<'_>, own: List) -> Result<VirtualHost, ConfigError> {
        let list = self.list_beside(node, own)?;
        let per_route = self.per_route(node)?;
        let host = Host { own, list, per_route: per_route.as_ref() };
        let otherwise = self.applicable(node, &host, None, NONE, false)?;
        let mut routes = ByName::default();
        let items = node.field("routes");
        let items = items.as_ref().map_or(Ok(Vec::new()), Node::items)?;
        for route in &items {
            route.object(
                "an object with `name`",
                &["name", "rate_limits", "include_vh_rate_limits", "per_route"],
                &OF_A_ROUTE,
            )?;
            // Routes without a name have the empty one.
            let name = match route.field("name") {
                Some(name) if !(name.is_text() && name.text()?.is_empty()) => {
                    name_test(&name, self.interner)?
                }
                _ => NameTest::Name(String::new()),
            };
            let list = self.list_beside(route, own)?;
            let per_route = self.per_route(route)?;
            let includes = route.flag("include_vh_rate_limits", false)?;
            let applicable = self.applicable(route, &host, per_route.as_ref(), list, includes)?;
            self.add(&mut routes, name, applicable, route)?;
        }
        Ok(VirtualHost { routes, otherwise })
    }

    /// A list that has no effect beside the filter's own.
    fn list_beside(&mut self, node: &Node<'_>, own: List) -> Result<List, ConfigError> {
        let list = self.list(node)?;
        match list.is_there && own.is_there {
            true => Err(node.at("rate_limits").error(
                "has no effect, as in Envoy: the filter's own `rate_limits` replace it; \
                 `per_route.rate_limits` would replace those",
            )),
            false => Ok(list),
        }
    }

    fn per_route(&mut self, node: &Node<'_>) -> Result<Option<PerRoute>, ConfigError> {
        let Some(node) = node.field("per_route") else { return Ok(None) };
        node.object(
            "an object with `vh_rate_limits`, `rate_limits` or `domain`",
            &["vh_rate_limits", "rate_limits", "domain"],
            &OF_A_PER_ROUTE,
        )?;
        let domain = match node.field("domain") {
            Some(domain) if !domain.text()?.is_empty() => Some(domain_mark(not_empty(&domain)?)),
            _ => None,
        };
        let vh_rate_limits = vh_rate_limits(&node)?;
        Ok(Some(PerRoute { list: self.list(&node)?, vh_rate_limits, domain }))
    }

    /// The index of what applies to a route of `host`: see the rules above.
    fn applicable(
        &mut self,
        node: &Node<'_>,
        host: &Host<'_>,
        per_route: Option<&PerRoute>,
        list: List,
        includes: bool,
    ) -> Result<usize, ConfigError> {
        let per_route = per_route.or(host.per_route);
        let vh_rate_limits = match per_route {
            _ if includes => VhRateLimits::Include,
            Some(per_route) => per_route.vh_rate_limits,
            None => VhRateLimits::Override,
        };
        let lists = match (per_route.map(|per_route| per_route.list), vh_rate_limits) {
            (Some(replacing), _) if replacing.is_there => [replacing, NONE],
            _ if host.own.is_there => [host.own, NONE],
            (_, VhRateLimits::Override) if list.is_there => [list, NONE],
            (_, VhRateLimits::Override | VhRateLimits::Include) => [list, host.list],
            (_, VhRateLimits::Ignore) => [list, NONE],
        };
        let lists = lists.map(|list| list.index);
        let entries = lists.iter().filter_map(|list| self.lists.get(*list)).map(Vec::len);
        let entries = entries.fold(0, usize::saturating_add);
        if entries > DESCRIPTORS_MAX {
            return Err(node.error(&format!(
                "{entries} entries of the route and its virtual host are too many (maximum \
                 {DESCRIPTORS_MAX})"
            )));
        }
        let domain = per_route.and_then(|per_route| per_route.domain.clone());
        let index = self.applicable.len();
        self.applicable.push(Applicable { lists, domain });
        Ok(index)
    }

    fn add<T>(
        &mut self,
        to: &mut ByName<T>,
        name: NameTest,
        item: T,
        node: &Node<'_>,
    ) -> Result<(), ConfigError> {
        self.blocks = self.blocks.saturating_add(1);
        if self.blocks > BLOCKS_MAX {
            let message = format!("more than {BLOCKS_MAX} virtual hosts and routes up to here");
            return Err(node.error(&message));
        }
        match name {
            NameTest::Matcher(matcher) => to.push(matcher, item),
            NameTest::Name(name) => {
                let is_unnamed = name.is_empty();
                if !to.insert(name, item) {
                    return Err(node.error(match is_unnamed {
                        true => {
                            "the second block for routes without a name, which a Wasm filter \
                                 cannot tell apart; give the routes names in Envoy"
                        }
                        false => "the second block of this name",
                    }));
                }
            }
        }
        Ok(())
    }
}

/// What the routes of a virtual host have in common.
struct Host<'p> {
    /// The filter's own.
    own: List,
    list: List,
    per_route: Option<&'p PerRoute>,
}

fn vh_rate_limits(node: &Node<'_>) -> Result<VhRateLimits, ConfigError> {
    use VhRateLimits::{Ignore, Include, Override};
    const NAMES: [&str; 3] = ["OVERRIDE", "INCLUDE", "IGNORE"];
    Ok(match variant(node, "vh_rate_limits", &NAMES)? {
        Some("INCLUDE") => Include,
        Some("IGNORE") => Ignore,
        _ => Override,
    })
}

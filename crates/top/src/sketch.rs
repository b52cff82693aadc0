//! The heavy hitters of a stream, in a fixed number of places: space-saving, with hits that decay.
//!
//! A descriptor without a place takes that of the lightest one, and takes over its weight as its error. Of K places and
//! a total weight of W (all hits of the stream, decayed to now):
//!
//! - `counted <= true weight <= counted + error`, for each descriptor that has a place
//! - `error <= W / K`, and what has no place weighs at most [`Sketch::floor`], which is at most W / K
//! - so a descriptor of more than W / K always has a place
//!
//! Weights are scaled: those that come later count more, by a factor of the caller, instead of all others counting
//! less. The order of descriptors does not change by time alone. The algorithm is that of Metwally, Agrawal and El
//! Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005).

use crate::name::Name;
use crate::recorder::Event;

/// A place and its descriptor.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    pub(crate) name: Name,
    /// Weight of others at most, taken over with the place.
    pub(crate) error: f64,
    pub(crate) counted: Weights,
    /// Hits since it has the place.
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// When its hits would fit, in milliseconds, as of its last denial.
    pub(crate) retry_at_ms: Option<u64>,
    /// The hits left under its tightest limit, and the capacity of that.
    pub(crate) left: Option<(u64, u32)>,
}

/// Decayed counts of hits, one for each outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Weights {
    pub(crate) allowed: f64,
    pub(crate) denied: f64,
    /// By another limit of the request.
    pub(crate) elsewhere: f64,
    /// Of all these, those that the filter decided.
    pub(crate) in_envoy: f64,
}

/// Places, and what each weighs.
#[derive(Debug, Default)]
pub(crate) struct Sketch {
    /// Of the descriptors. Apart from the places, as these are searched.
    hashes: Vec<u64>,
    weights: Vec<f64>,
    places: Vec<Place>,
}

/// What a place takes, beside its name.
pub(crate) const PLACE_BYTES: usize = size_of::<Place>() + size_of::<u64>() + size_of::<f64>();

/// The least of these, which are numbers. In lanes, which do not wait for each other.
fn least(weights: &[f64]) -> f64 {
    let mut lanes = [f64::INFINITY; 8];
    for chunk in weights.chunks(lanes.len()) {
        for (lane, weight) in lanes.iter_mut().zip(chunk) {
            *lane = if weight < lane { *weight } else { *lane };
        }
    }
    lanes.into_iter().fold(f64::INFINITY, f64::min)
}

impl Weights {
    pub(crate) fn add(&mut self, other: Weights) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.elsewhere += other.elsewhere;
        self.in_envoy += other.in_envoy;
    }

    pub(crate) fn scaled(self, factor: f64) -> Weights {
        Weights {
            allowed: self.allowed * factor,
            denied: self.denied * factor,
            elsewhere: self.elsewhere * factor,
            in_envoy: self.in_envoy * factor,
        }
    }

    pub(crate) fn hits(self) -> f64 {
        self.allowed + self.denied + self.elsewhere
    }
}

impl Sketch {
    /// Adds hits of a descriptor, which weigh `weight`, to at most `places_max` places. Returns by how many bytes the sketch
    /// grew.
    pub(crate) fn add(
        &mut self,
        event: &Event<'_>,
        (weight, weights): (f64, Weights),
        places_max: usize,
    ) -> isize {
        let known = self.hashes.iter().position(|hash| *hash == event.hash);
        let (index, grown) = match known {
            Some(index) => (index, 0),
            None => self.take_place(event, places_max),
        };
        let Some(place) = self.places.get_mut(index) else { return grown };
        self.weights[index] += weight;
        place.counted.add(weights);
        place.allowed = place.allowed.saturating_add(event.allowed);
        place.denied = place.denied.saturating_add(event.denied);
        if event.retry_at_ms.is_some() {
            place.retry_at_ms = event.retry_at_ms;
        }
        if event.left.is_some() {
            place.left = event.left;
        }
        grown
    }

    /// Gives a place to a descriptor that has none: a new one, or the lightest.
    fn take_place(&mut self, event: &Event<'_>, places_max: usize) -> (usize, isize) {
        if self.places.len() < places_max {
            let mut place = Place::default();
            place.name.set(event.domain, event.entries.clone());
            let grown = PLACE_BYTES + place.name.bytes();
            self.hashes.push(event.hash);
            self.weights.push(0.0);
            self.places.push(place);
            return (self.places.len() - 1, grown as isize);
        }
        let least = least(&self.weights);
        let lightest = self.weights.iter().position(|weight| *weight == least).unwrap_or(0);
        let place = &mut self.places[lightest];
        let before = place.name.bytes();
        // Its name keeps the memory.
        *place = Place {
            name: std::mem::take(&mut place.name),
            error: self.weights[lightest],
            ..Place::default()
        };
        place.name.set(event.domain, event.entries.clone());
        self.hashes[lightest] = event.hash;
        (lightest, place.name.bytes() as isize - before as isize)
    }

    /// What a descriptor without a place weighs at most.
    pub(crate) fn floor(&self, places_max: usize) -> f64 {
        if self.places.len() < places_max {
            return 0.0;
        }
        least(&self.weights)
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.iter().map(|place| PLACE_BYTES + place.name.bytes()).sum()
    }

    /// Multiplies all weights.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
        for place in &mut self.places {
            place.error *= factor;
            place.counted = place.counted.scaled(factor);
        }
    }

    /// Keeps the heaviest `places_max`. The floor stays true: what goes weighs no more than what stays.
    pub(crate) fn shrink(&mut self, places_max: usize) {
        if self.places.len() <= places_max {
            return;
        }
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_by(|a, b| self.weights[*b].total_cmp(&self.weights[*a]));
        order.truncate(places_max);
        self.hashes = order.iter().map(|index| self.hashes[*index]).collect();
        self.weights = order.iter().map(|index| self.weights[*index]).collect();
        self.places = order.iter().map(|index| std::mem::take(&mut self.places[*index])).collect();
    }
}

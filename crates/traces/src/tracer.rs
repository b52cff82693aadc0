//! The entry of servers: a span for each call that is sampled.

use crate::context::Context;
use crate::export::{self, Exporting};
use crate::queue::{Queue, SpanCounts};
use crate::random;
use crate::sampler::Sampler;
use crate::settings::Settings;
use crate::span::{Door, Span};
use std::sync::Arc;
use std::time::Duration;

/// Makes spans, and exports them; clones share everything.
#[derive(Debug, Clone)]
pub struct Tracer {
    sampler: Sampler,
    queue: Arc<Queue>,
    exporting: Arc<Exporting>,
}

impl Tracer {
    /// Starts the export, on a thread of its own, which does not keep the process from ending.
    ///
    /// # Errors
    /// If certificates cannot be read, or the thread cannot be started.
    pub fn start(settings: &Settings) -> anyhow::Result<Tracer> {
        let queue = Arc::new(Queue::default());
        let exporting = Arc::new(export::start(settings, queue.clone())?);
        Ok(Tracer { sampler: settings.sampler, queue, exporting })
    }

    /// The span of a call that has just been read, if it is sampled; `value_of` finds the first value of a name in its
    /// metadata. Allocates nothing if it is not.
    pub fn begin<'a>(
        &self,
        door: Door,
        value_of: impl Fn(&'static str) -> Option<&'a [u8]>,
    ) -> Option<Span> {
        let context = Context::read(&value_of);
        let trace_id = context.parent.map_or_else(random::trace_id, |parent| parent.trace_id);
        if !self.sampler.samples(context.choice, trace_id) {
            return None;
        }
        let parent_id = context.parent.map_or(0, |parent| parent.span_id);
        let ids = (trace_id, random::span_id(), parent_id);
        Some(Span::begin(self.queue.clone(), ids, context.state(value_of), door))
    }

    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        self.queue.counts()
    }

    /// Sends what is in the queue, for this long at most, and ends the export. Spans that end later are dropped.
    pub async fn finish(&self, time_max: Duration) {
        self.exporting.finish(&self.queue, time_max).await;
    }
}

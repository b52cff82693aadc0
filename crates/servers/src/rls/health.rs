//! gRPC's health service, `grpc.health.v1.Health`: Check and Watch.
//!
//! All names have one health, that of the process: `""`, `ratelimit` (the name that envoyproxy/ratelimit
//! has) and the name of the rate limit service.

use super::messages::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::health::Health;
use prost::Message;
use std::future::pending;
use tidegate_grpc::server::Outcome;
use tidegate_grpc::{Code, Status};
use tidegate_wire::RLS_SERVICE;
use tokio::sync::watch;

/// The service's name.
pub(super) const SERVICE: &str = "grpc.health.v1.Health";

const NAMES: [&str; 3] = ["", "ratelimit", RLS_SERVICE];

/// How the door stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Requests are decided.
    Serving,
    /// They cannot be.
    NotServing,
    /// Calls under way are answered, and no new ones taken.
    Stopping,
}

/// Tells of each change, until the door is to stop.
pub(super) async fn follow(
    mut health: Health,
    mut stop: watch::Receiver<bool>,
    states: watch::Sender<State>,
) {
    loop {
        let state = match health.failing() {
            _ if *stop.borrow_and_update() => State::Stopping,
            None => State::Serving,
            Some(_) => State::NotServing,
        };
        states.send_if_modified(|known| std::mem::replace(known, state) != state);
        if state == State::Stopping {
            return;
        }
        tokio::select! {
            changed = stop.changed() => if changed.is_err() {
                // Whoever could say stop is gone, which is a stop as well.
                states.send_replace(State::Stopping);
                return;
            },
            () = change(&mut health.draining) => {}
            () = change(&mut health.store) => {}
        }
    }
}

/// Waits for a change; what can no longer change never does.
async fn change<T>(watched: &mut watch::Receiver<T>) {
    if watched.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// What those who watch are told.
pub(super) fn message(state: State) -> Vec<u8> {
    encoded(match state {
        State::Serving => ServingStatus::Serving,
        State::NotServing | State::Stopping => ServingStatus::NotServing,
    })
}

/// Answers a Check.
pub(super) fn check(message: &[u8], health: &Health, answer: &mut Vec<u8>) -> Outcome {
    match status(message, health) {
        Ok(ServingStatus::ServiceUnknown) => {
            Outcome::Refused(Status::new(Code::NotFound, "unknown service"))
        }
        Ok(status) => {
            answer.extend(encoded(status));
            Outcome::Unary
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

/// Answers a Watch.
pub(super) fn watch(message: &[u8], health: &Health, answer: &mut Vec<u8>) -> Outcome {
    match status(message, health) {
        Ok(status) => {
            answer.extend(encoded(status));
            match status {
                // No name becomes known later, so there is nothing more to tell. The protocol wants the
                // call open all the same: a client takes an end for a failure, and begins anew.
                ServingStatus::ServiceUnknown => Outcome::Kept,
                _ => Outcome::Watched,
            }
        }
        Err(refused) => Outcome::Refused(refused),
    }
}

fn status(message: &[u8], health: &Health) -> Result<ServingStatus, Status> {
    let request = HealthCheckRequest::decode(message).map_err(|error| {
        Status::new(Code::InvalidArgument, format!("not a HealthCheckRequest: {error}"))
    })?;
    Ok(match health.failing() {
        _ if !NAMES.contains(&request.service.as_str()) => ServingStatus::ServiceUnknown,
        None => ServingStatus::Serving,
        Some(_) => ServingStatus::NotServing,
    })
}

fn encoded(status: ServingStatus) -> Vec<u8> {
    HealthCheckResponse { status: status.into() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_data_dir::{FileState, StoreHealth};

    struct Process {
        draining: watch::Sender<bool>,
        store: watch::Sender<StoreHealth>,
        health: Health,
    }

    fn files(files: FileState) -> StoreHealth {
        StoreHealth { files, ..StoreHealth::default() }
    }

    fn process() -> Process {
        let (draining, is_draining) = watch::channel(false);
        let (store, is_store) = watch::channel(StoreHealth::default());
        Process {
            draining,
            store,
            health: Health { draining: is_draining, store: is_store, workers: None },
        }
    }

    fn asked(
        health: &Health,
        service: &str,
        how: fn(&[u8], &Health, &mut Vec<u8>) -> Outcome,
    ) -> (Outcome, Option<ServingStatus>) {
        let request = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
        let mut answer = Vec::new();
        let outcome = how(&request, health, &mut answer);
        // The status SERVING takes two bytes; only UNKNOWN, which is never said, takes none.
        let status = (!answer.is_empty())
            .then(|| HealthCheckResponse::decode(answer.as_slice()).unwrap().status());
        (outcome, status)
    }

    #[test]
    fn names_that_are_served_have_the_health_of_the_process() {
        let process = process();
        for name in NAMES {
            let serving = Some(ServingStatus::Serving);
            assert_eq!(asked(&process.health, name, check), (Outcome::Unary, serving));
            assert_eq!(asked(&process.health, name, watch), (Outcome::Watched, serving));
        }
        process.draining.send_replace(true);
        let not_serving = Some(ServingStatus::NotServing);
        assert_eq!(asked(&process.health, "", check), (Outcome::Unary, not_serving));
        process.draining.send_replace(false);
        process.store.send_replace(files(FileState::Damaged));
        assert_eq!(asked(&process.health, "", watch), (Outcome::Watched, not_serving));
    }

    #[test]
    fn an_unknown_name_is_not_found_or_told_as_unknown() {
        let health = process().health;
        let (outcome, status) = asked(&health, "other", check);
        assert_eq!(outcome, Outcome::Refused(Status::new(Code::NotFound, "unknown service")));
        assert_eq!(status, None);
        let unknown = Some(ServingStatus::ServiceUnknown);
        assert_eq!(asked(&health, "other", watch), (Outcome::Kept, unknown));
        let refused = check(&[0xff], &health, &mut Vec::new());
        assert!(
            matches!(refused, Outcome::Refused(status) if status.code == Code::InvalidArgument)
        );
    }

    #[tokio::test]
    async fn each_change_is_told_once_and_a_stop_is_the_last() {
        let process = process();
        let (stop, stopped) = watch::channel(false);
        let (states, mut state) = watch::channel(State::Serving);
        let following = tokio::spawn(follow(process.health.clone(), stopped, states));
        process.store.send_replace(files(FileState::Damaged));
        state.changed().await.unwrap();
        assert_eq!(*state.borrow_and_update(), State::NotServing);
        process.store.send_replace(files(FileState::Replaced));
        state.changed().await.unwrap();
        assert_eq!(*state.borrow_and_update(), State::Serving);
        // That nobody looks after the store any more is no change.
        drop(process.store);
        stop.send_replace(true);
        state.changed().await.unwrap();
        assert_eq!(*state.borrow_and_update(), State::Stopping);
        following.await.unwrap();
        assert!(state.changed().await.is_err());
    }
}

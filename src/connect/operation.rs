//! One execution: its answers are kept until the client has them, so that it can come back after its connection broke.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use futures::Stream;
use tokio::sync::Notify;
use tonic::Status;

use super::wire::spark::ExecutePlanResponse;
use super::wire::spark::execute_plan_response::{ResponseType, ResultComplete};

/// An execution and its answers.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: String,
    session: String,
    server: String,
    pub(super) tags: Vec<String>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the first answer that is kept.
    first: usize,
    kept: VecDeque<ExecutePlanResponse>,
    end: Option<Result<(), Status>>,
    interrupted: bool,
}

impl Operation {
    pub(super) fn new(id: String, session: String, server: String, tags: Vec<String>) -> Arc<Operation> {
        Arc::new(Operation { id, session, server, tags, state: Mutex::default(), changed: Notify::new() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer.
    pub(super) fn send(&self, response: ResponseType) {
        self.push(ExecutePlanResponse { response_type: Some(response), ..ExecutePlanResponse::default() });
    }

    /// Adds an answer with what else it says.
    pub(super) fn push(&self, response: ExecutePlanResponse) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        let number = state.first + state.kept.len();
        state.kept.push_back(ExecutePlanResponse {
            session_id: self.session.clone(),
            server_side_session_id: self.server.clone(),
            operation_id: self.id.clone(),
            response_id: number.to_string(),
            ..response
        });
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends it.
    pub(super) fn end(&self, result: Result<(), Status>) {
        if result.is_ok() {
            self.send(ResponseType::ResultComplete(ResultComplete {}));
        }
        let mut state = self.state();
        if state.end.is_none() {
            state.end = Some(result);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends it for the client; what it has begun is finished by itself.
    pub(super) fn interrupt(&self) -> bool {
        let mut state = self.state();
        if state.end.is_some() {
            return false;
        }
        state.interrupted = true;
        state.end = Some(Err(Status::cancelled("[OPERATION_CANCELED] the operation was interrupted")));
        drop(state);
        self.changed.notify_waiters();
        true
    }

    pub(super) fn is_done(&self) -> bool {
        self.state().end.is_some()
    }

    /// Lets go of the answers up to and including one.
    pub(super) fn release(&self, until: &str) {
        let Ok(until) = until.parse::<usize>() else { return };
        let mut state = self.state();
        while state.first <= until && state.kept.pop_front().is_some() {
            state.first += 1;
        }
    }

    /// The answers behind one, or all of them, as they come.
    pub(super) fn answers(
        self: &Arc<Self>,
        after: Option<&str>,
    ) -> Result<impl Stream<Item = Result<ExecutePlanResponse, Status>> + Send + 'static, Status> {
        let next = match after {
            None => 0,
            Some(last) => match last.parse::<usize>() {
                Ok(last) => last + 1,
                Err(_) => return Err(Status::invalid_argument("there is no such response")),
            },
        };
        let operation = Arc::clone(self);
        Ok(futures::stream::unfold(Some((operation, next)), |at| async move {
            let (operation, next) = at?;
            loop {
                // Registered before looking, so that no change between the two is missed.
                let changed = operation.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                match operation.at(next) {
                    Found::Response(response) => {
                        return Some((Ok(*response), Some((Arc::clone(&operation), next + 1))));
                    }
                    Found::Gone => {
                        return Some((Err(Status::out_of_range("that response has been released")), None));
                    }
                    Found::End(Ok(())) => return None,
                    Found::End(Err(status)) => return Some((Err(status), None)),
                    Found::Later => changed.await,
                }
            }
        }))
    }

    fn at(&self, number: usize) -> Found {
        let state = self.state();
        let Some(place) = number.checked_sub(state.first) else { return Found::Gone };
        match (state.kept.get(place), &state.end) {
            (_, Some(end)) if state.interrupted => Found::End(end.clone()),
            (Some(response), _) => Found::Response(Box::new(response.clone())),
            (None, Some(end)) => Found::End(end.clone()),
            (None, None) => Found::Later,
        }
    }
}

enum Found {
    Response(Box<ExecutePlanResponse>),
    Gone,
    End(Result<(), Status>),
    Later,
}

//! Where a step of one container writes what it produces.

use std::sync::Arc;

use pulselet_vocabulary::Severity;

use crate::event::Event;
use crate::io::{Action, LifeKey, Outbox};
use crate::line::{Line, LineBody};
use crate::plan::Settings;
use crate::time::Time;
use crate::transition::Transition;

/// The moment and the container a step belongs to.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) now: Time,
    pub(crate) life: LifeKey,
    pub(crate) name: Arc<str>,
    pub(crate) settings: &'a Settings,
    pub(crate) out: &'a mut Outbox,
}

impl Scope<'_> {
    pub(crate) fn line(&mut self, body: LineBody) {
        self.out.lines.push(Line {
            at: self.now,
            container: Some(Arc::clone(&self.name)),
            body,
        });
    }

    pub(crate) fn transition(&mut self, transition: Transition) {
        self.out.transitions.push(transition);
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.out.actions.push(action);
    }

    pub(crate) fn normal(&mut self, reason: &'static str, message: impl Into<String>) {
        self.event(Severity::Normal, reason, message.into());
    }

    pub(crate) fn warning(&mut self, reason: &'static str, message: impl Into<String>) {
        self.event(Severity::Warning, reason, message.into());
    }

    fn event(&mut self, severity: Severity, reason: &'static str, message: String) {
        self.out.events.push(Event {
            container: Some(Arc::clone(&self.name)),
            severity,
            reason,
            message,
        });
    }
}

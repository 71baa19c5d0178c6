//! Putting back what others have taken from the pods' network: tables of nftables, forwarding, settings of the bridge.
//!
//! A firewall that reloads may remove the tables of all programs. Memory does not tell; so what the kernel has is
//! compared with what it had just after each table was installed. What must always hold: loopback addresses are routed to
//! the bridge only while the table is there that guards them from pods, and the machine forwards for pods only while the
//! table is there that limits it.
//!
//! What is left to others: when to compare, and how often tables may be installed again (`watch`).

use std::{fmt, io};

use pulselet_runtime::NetworkPart;

use super::{
    Forward, Network, State, firewall, forwarding, link_settings,
    nftables::{Nftables, Outline, Table},
    services,
};

/// A table of ours.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableState {
    /// Nothing needs it, or this machine never took it.
    #[default]
    Unneeded,
    /// It was installed, and others have removed or changed it since.
    Lost,
    Installed(Table),
}

impl TableState {
    pub(super) fn is_installed(self) -> bool {
        matches!(self, Self::Installed(_))
    }
}

/// What the kernel had of our tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) firewall: TableState,
    pub(super) services: TableState,
    pub(super) forwarding: TableState,
    /// The last transaction after which they were as they should be; `None` if it is not known.
    generation: Option<u32>,
    /// As it was set last; `None` before.
    pub(super) routes_loopback: Option<bool>,
    /// It was said that something cannot be restored.
    has_failed: bool,
    /// It was said that others have turned forwarding off.
    is_unforwarded: bool,
}

/// What came of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Repair {
    pub(super) restored: Vec<NetworkPart>,
    /// Something is still missing.
    pub(super) is_incomplete: bool,
}

/// A table as it is just after it was installed, if others have not changed it already.
pub(super) fn installed_table(name: &str, outline: Outline) -> TableState {
    match Nftables::open().and_then(|nftables| nftables.table(name, None)) {
        Ok(Some(table)) if table.outline == outline => TableState::Installed(table),
        Ok(found) => {
            tracing::debug!(
                table = name,
                ?found,
                ?outline,
                "a table was changed while it was installed"
            );
            TableState::Lost
        }
        Err(error) => {
            tracing::warn!(table = name, %error, "cannot read a table that was installed");
            TableState::Lost
        }
    }
}

impl Network {
    /// Compares the kernel's state with what it should be, and restores what others took away. What must not be
    /// without its rules is turned off immediately; the rest is restored if `may_install` says so.
    pub(super) fn repair(&self, may_install: bool) -> Repair {
        let mut guard = self.state.lock().expect("no holder panics");
        let state = &mut *guard;
        let mut repair = Repair::default();
        if state.users.is_empty() {
            return repair;
        }
        self.compare(&mut state.tables);
        self.guard_loopback(&mut state.tables);
        if may_install {
            self.restore_firewall(state, &mut repair);
            self.restore_forwarding(&mut state.tables, &mut repair);
            self.restore_services(state, &mut repair);
            self.restore_settings(state, &mut repair);
        } else if state.tables.forwarding == TableState::Lost {
            let _ = self.forwarding.suspend();
        }
        let Tables {
            firewall,
            services,
            forwarding,
            ..
        } = state.tables;
        repair.is_incomplete = [firewall, services, forwarding].contains(&TableState::Lost);
        if !repair.is_incomplete {
            state.tables.has_failed = false;
        }
        repair
    }

    /// Finds the tables that others have removed or changed.
    pub(super) fn compare(&self, tables: &mut Tables) {
        if let Err(error) = self.try_compare(tables) {
            tracing::debug!(%error, "cannot compare the rules of the kernel");
        }
    }

    fn try_compare(&self, tables: &mut Tables) -> io::Result<()> {
        let nftables = Nftables::open()?;
        let generation = nftables.generation()?;
        if tables.generation == Some(generation) {
            return Ok(());
        }
        let own = [
            (firewall::table(&self.bridge), &mut tables.firewall),
            (services::table(&self.bridge), &mut tables.services),
        ];
        for (name, state) in own {
            if let TableState::Installed(expected) = *state
                && nftables.table(&name, Some(expected))? != Some(expected)
            {
                *state = TableState::Lost;
            }
        }
        if let TableState::Installed(expected) = tables.forwarding {
            let found = nftables.table(forwarding::TABLE, Some(expected))?;
            if found != Some(expected) {
                tables.forwarding = self.changed_limit(found);
            }
        }
        let is_same = nftables.generation()? == generation;
        tables.generation = is_same.then_some(generation);
        Ok(())
    }

    /// Other agents change the limit of forwarding as their bridges come and go.
    fn changed_limit(&self, found: Option<Table>) -> TableState {
        match found {
            _ if !self.forwarding.is_ours() => TableState::Unneeded,
            Some(table)
                if table.outline == forwarding::OUTLINE && forwarding::is_limited_to(&self.bridge) =>
            {
                TableState::Installed(table)
            }
            Some(_) | None => TableState::Lost,
        }
    }

    /// Without the table no pod may reach the host's loopback addresses.
    pub(super) fn guard_loopback(&self, tables: &mut Tables) {
        if tables.firewall.is_installed() {
            return;
        }
        if firewall::routes_loopback(&self.bridge) == Some(true) {
            firewall::route_loopback(&self.bridge, false);
        }
        tables.routes_loopback = Some(false);
    }

    fn restore_firewall(&self, state: &mut State, repair: &mut Repair) {
        if state.tables.firewall != TableState::Lost {
            return;
        }
        let wanted: Vec<Forward> = state.users.values().flatten().cloned().collect();
        match firewall::install(&self.bridge, self.subnet, &wanted) {
            Ok(()) => {
                let outline = firewall::outline(&wanted);
                state.tables.firewall = installed_table(&firewall::table(&self.bridge), outline);
                state.installed = Some(wanted);
                if state.tables.firewall.is_installed() {
                    repair.restored.push(NetworkPart::Firewall);
                }
                self.route_loopback(state);
            }
            Err(error) => state.tables.failed(&error),
        }
    }

    fn restore_forwarding(&self, tables: &mut Tables, repair: &mut Repair) {
        let is_on = forwarding::is_on();
        let is_ours = match tables.forwarding {
            TableState::Unneeded => false,
            TableState::Installed(_) if is_on => {
                tables.is_unforwarded = false;
                return;
            }
            TableState::Installed(_) => self.forwarding.is_ours(),
            TableState::Lost => true,
        };
        if !is_ours {
            let says = !is_on && !tables.is_unforwarded && tables.firewall.is_installed();
            tables.is_unforwarded = !is_on;
            if says {
                tracing::warn!(
                    "pods do not reach beyond this machine: it forwarded before the first pod, and another program has turned \
                     net.ipv4.ip_forward off"
                );
            }
            return;
        }
        match self.turn_on_forwarding(tables) {
            Ok(()) if tables.forwarding == TableState::Lost => {}
            Ok(()) => repair.restored.push(NetworkPart::Forwarding),
            Err(error) => {
                if tables.forwarding == TableState::Lost {
                    let _ = self.forwarding.suspend();
                }
                tables.failed(&error);
            }
        }
    }

    fn restore_services(&self, state: &mut State, repair: &mut Repair) {
        if state.tables.services != TableState::Lost {
            return;
        }
        state.services.lost();
        match self.update_services(state) {
            Ok(()) if state.tables.services == TableState::Lost => {}
            Ok(()) => repair.restored.push(NetworkPart::Services),
            Err(error) => state.tables.failed(&error),
        }
    }

    fn restore_settings(&self, state: &mut State, repair: &mut Repair) {
        let is_routed = firewall::routes_loopback(&self.bridge);
        let differs = is_routed.is_some()
            && state
                .tables
                .routes_loopback
                .is_some_and(|set| is_routed != Some(set));
        if differs {
            self.route_loopback(state);
        }
        let is_protected = link_settings::is_bridge_protected(&self.bridge);
        if !is_protected && let Err(error) = link_settings::protect_bridge(&self.bridge) {
            state.tables.failed(&error);
            return;
        }
        if differs || !is_protected {
            repair.restored.push(NetworkPart::Bridge);
        }
    }
}

impl Tables {
    /// Says so once.
    fn failed(&mut self, error: impl fmt::Display) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!(
                %error,
                "cannot restore the pods' network, which another program has changed; it is tried again every ten seconds"
            );
        }
    }
}

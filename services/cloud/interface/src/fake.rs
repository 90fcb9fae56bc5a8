//! A provider in memory, with a will of its own when asked.
//!
//! It keeps every promise of the interface; [`Fake::fail`] makes calls fail without effect,
//! [`Fake::lose_answer`] with effect, [`Fake::hold`] stops one in the middle (which is where tests kill
//! whoever called). [`Fake::calls`] tells what was asked.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use async_trait::async_trait;
use base_clock::Timestamp;
use base_ids::TenantId;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::CloudError;
use crate::model::*;

/// The calls of [`Cloud`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Describe,
    CreateMachine,
    ListMachines,
    DeleteMachine,
    EnsureBalancer,
    ListBalancers,
    DeleteBalancer,
}

/// Clones are handles on the same provider.
#[derive(Clone, Default)]
pub struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    machines: BTreeMap<String, Machine>,
    balancers: BTreeMap<String, (BalancerSpec, Balancer)>,
    made: u32,
    quota: Option<usize>,
    boots_slowly: bool,
    faults: VecDeque<(Call, Fault)>,
    calls: Vec<(Call, String)>,
    /// Name of every machine's last join, for tests that play the machine.
    joins: BTreeMap<String, Join>,
}

#[derive(Clone)]
enum Fault {
    Fail(CloudError),
    LoseAnswer,
    Hold { after: bool, reached: Arc<Semaphore>, go: Arc<Semaphore> },
}

/// A call that is held; see [`Fake::hold`].
pub struct Held {
    reached: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Held {
    /// Resolves when somebody's call has got there.
    pub async fn reached(&self) {
        if let Ok(permit) = self.reached.acquire().await {
            permit.forget();
        }
    }
    pub fn release(&self) {
        self.go.add_permits(1);
    }
}

impl Fake {
    pub fn new() -> Fake {
        Fake::default()
    }
    pub fn shared(&self) -> SharedCloud {
        Arc::new(self.clone())
    }

    /// The next `call` fails and has no effect.
    pub fn fail(&self, call: Call, error: CloudError) {
        self.state.lock().faults.push_back((call, Fault::Fail(error)));
    }
    /// The next `call` takes effect, but the caller hears that the provider is not available.
    pub fn lose_answer(&self, call: Call) {
        self.state.lock().faults.push_back((call, Fault::LoseAnswer));
    }
    /// The next `call` stops before (or after) it takes effect, until released.
    pub fn hold(&self, call: Call, after: bool) -> Held {
        let (reached, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let fault = Fault::Hold { after, reached: reached.clone(), go: go.clone() };
        self.state.lock().faults.push_back((call, fault));
        Held { reached, go }
    }
    /// Machines beyond this many are refused.
    pub fn set_quota(&self, most: Option<usize>) {
        self.state.lock().quota = most;
    }
    /// New machines stay pending until [`Fake::set_machine`].
    pub fn boot_slowly(&self, slowly: bool) {
        self.state.lock().boots_slowly = slowly;
    }

    /// Every call so far, with the client token or id it named.
    pub fn calls(&self) -> Vec<(Call, String)> {
        self.state.lock().calls.clone()
    }
    pub fn count(&self, call: Call) -> usize {
        self.state.lock().calls.iter().filter(|(one, _)| *one == call).count()
    }
    pub fn machines(&self) -> Vec<Machine> {
        self.state.lock().machines.values().cloned().collect()
    }
    pub fn balancers(&self) -> Vec<(BalancerSpec, Balancer)> {
        self.state.lock().balancers.values().cloned().collect()
    }
    pub fn join_of(&self, machine_name: &str) -> Option<Join> {
        self.state.lock().joins.get(machine_name).cloned()
    }
    /// Something happens to a machine that nobody asked for.
    pub fn set_machine(&self, id: &str, state: MachineState, message: &str) {
        if let Some(machine) = self.state.lock().machines.get_mut(id) {
            machine.state = state;
            machine.message = message.to_owned();
        }
    }
    /// The cloud takes a machine away.
    pub fn vanish(&self, id: &str) {
        self.state.lock().machines.remove(id);
    }
    /// Somebody deletes a balancer behind everybody's back.
    pub fn vanish_balancer(&self, id: &str) {
        self.state.lock().balancers.remove(id);
    }

    async fn go<T>(
        &self,
        call: Call,
        about: &str,
        act: impl FnOnce(&mut State) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let fault = {
            let mut state = self.state.lock();
            state.calls.push((call, about.to_owned()));
            let at = state.faults.iter().position(|(one, _)| *one == call);
            at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault)
        };
        let stop = async |reached: &Semaphore, go: &Semaphore| {
            reached.add_permits(1);
            if let Ok(permit) = go.acquire().await {
                permit.forget();
            }
        };
        match fault {
            None => act(&mut self.state.lock()),
            Some(Fault::Fail(error)) => Err(error),
            Some(Fault::LoseAnswer) => {
                act(&mut self.state.lock())?;
                Err(CloudError::Unavailable("the connection broke".to_owned()))
            }
            Some(Fault::Hold { after: false, reached, go }) => {
                stop(&reached, &go).await;
                act(&mut self.state.lock())
            }
            Some(Fault::Hold { after: true, reached, go }) => {
                let outcome = act(&mut self.state.lock());
                stop(&reached, &go).await;
                outcome
            }
        }
    }
}

#[async_trait]
impl Cloud for Fake {
    async fn describe(&self) -> Result<Description, CloudError> {
        let kind = |name: &str, cpu_millis, memory_bytes| MachineType {
            name: name.to_owned(),
            cpu_millis,
            memory_bytes,
        };
        self.go(Call::Describe, "", |_| {
            Ok(Description {
                name: "fake".to_owned(),
                capabilities: Capabilities { machines: true, balancers: true, udp: true },
                machine_types: vec![kind("small", 1000, 1 << 30), kind("large", 8000, 16 << 30)],
                address_pools: vec!["198.51.100.0/24".to_owned()],
                region: "nowhere".to_owned(),
            })
        })
        .await
    }

    async fn create_machine(&self, spec: &MachineSpec) -> Result<Machine, CloudError> {
        self.go(Call::CreateMachine, spec.client_token.as_str(), |state| {
            let same = |one: &&Machine| one.cluster == spec.cluster && one.client_token == spec.client_token;
            if let Some(found) = state.machines.values().find(same) {
                let fits = found.name == spec.name
                    && (spec.machine_type.is_empty() || found.machine_type == spec.machine_type);
                return match fits {
                    true => Ok(found.clone()),
                    false => Err(CloudError::TokenUsed(format!("machine {} has it", found.id))),
                };
            }
            let machine_type = match spec.machine_type.as_str() {
                "" => "small",
                one @ ("small" | "large") => one,
                other => return Err(CloudError::Invalid(format!("no machine type {other:?}"))),
            };
            if state.quota.is_some_and(|most| state.machines.len() >= most) {
                return Err(CloudError::Exhausted("the quota of machines".to_owned()));
            }
            state.made += 1;
            let id = format!("m-{:04}", state.made);
            let [.., high, low] = state.made.to_be_bytes();
            let machine = Machine {
                provider_id: format!("fake:///{id}"),
                id: id.clone(),
                cluster: spec.cluster,
                client_token: spec.client_token.clone(),
                name: spec.name.clone(),
                machine_type: machine_type.to_owned(),
                state: if state.boots_slowly { MachineState::Pending } else { MachineState::Running },
                addresses: vec![IpAddr::V4(Ipv4Addr::new(192, 0, high, low))],
                zone: "nowhere-1".to_owned(),
                region: "nowhere".to_owned(),
                message: String::new(),
                created_at: Timestamp::now(),
                tags: spec.tags.clone(),
            };
            state.joins.insert(spec.name.clone(), spec.join.clone());
            state.machines.insert(id, machine.clone());
            Ok(machine)
        })
        .await
    }

    async fn list_machines(&self, cluster: TenantId) -> Result<Vec<Machine>, CloudError> {
        self.go(Call::ListMachines, "", |state| {
            Ok(state.machines.values().filter(|one| one.cluster == cluster).cloned().collect())
        })
        .await
    }

    async fn delete_machine(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        self.go(Call::DeleteMachine, id, |state| {
            if state.machines.get(id).is_some_and(|one| one.cluster == cluster) {
                state.machines.remove(id);
            }
            Ok(())
        })
        .await
    }

    async fn ensure_balancer(&self, spec: &BalancerSpec) -> Result<Balancer, CloudError> {
        self.go(Call::EnsureBalancer, spec.client_token.as_str(), |state| {
            let same = |(one, _): &&mut (BalancerSpec, Balancer)| {
                one.cluster == spec.cluster && one.client_token == spec.client_token
            };
            if let Some((described, balancer)) = state.balancers.values_mut().find(same) {
                *described = spec.clone();
                return Ok(balancer.clone());
            }
            state.made += 1;
            let id = format!("lb-{:04}", state.made);
            let last = state.made.to_be_bytes()[3];
            let address = spec.wanted_address.unwrap_or(IpAddr::V4(Ipv4Addr::new(198, 51, 100, last)));
            let balancer = Balancer {
                id: id.clone(),
                cluster: spec.cluster,
                client_token: spec.client_token.clone(),
                name: spec.name.clone(),
                state: BalancerState::Active,
                addresses: vec![address],
                hostname: None,
                message: String::new(),
                created_at: Timestamp::now(),
                tags: spec.tags.clone(),
            };
            state.balancers.insert(id, (spec.clone(), balancer.clone()));
            Ok(balancer)
        })
        .await
    }

    async fn list_balancers(&self, cluster: TenantId) -> Result<Vec<Balancer>, CloudError> {
        self.go(Call::ListBalancers, "", |state| {
            let own = state.balancers.values().filter(|(spec, _)| spec.cluster == cluster);
            Ok(own.map(|(_, balancer)| balancer.clone()).collect())
        })
        .await
    }

    async fn delete_balancer(&self, cluster: TenantId, id: &str) -> Result<(), CloudError> {
        self.go(Call::DeleteBalancer, id, |state| {
            if state.balancers.get(id).is_some_and(|(spec, _)| spec.cluster == cluster) {
                state.balancers.remove(id);
            }
            Ok(())
        })
        .await
    }
}

//! Questions for buffers, and the link that two programs share.
//!
//! ```text
//!   importer   [length, number, name ..]  --- an out-of-band message --->  exporter
//!              <--- [GRANTED, number, .. handle], [ELSEWHERE, number], [0, number, reason ..] ---
//! ```
//! Two programs share one link, over which both ask. A program that asks for the first time connects, and
//! then looks for a link that the other has made. Where both have connected at the same time, the link of
//! the lower node stays, unless the higher one has had an answer over its own:
//! ```text
//!   lower   has connected, and is asked over the other's link: answers ELSEWHERE, while it uses its own
//!   higher  waits for the lower one's link, asks over it, and ends its own
//! ```
//! Never: a peer gets more than its user may; a question makes anything grow without bound; a program that
//! has not proved that it is a node is taken for it.

use crate::vmmc::{Asker, Asking, Exported, Inner, NAME_MAX, State, unpoisoned};
use crate::{Error, Exporting, Proxy, Users, Vmmc};
use hamlyn::NodeId;
use hamlyn_clan::{Endpoint, HANDLE_BYTES, OOB_BYTES};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The first byte of an answer, behind which the question's number comes; anything else: it is refused,
/// with the reason in words.
const GRANTED: u8 = 1;
/// The answer to a question over a link that the two programs do not share.
const ELSEWHERE: u8 = 2;
/// The time after which a question without an answer is asked again.
const REPEAT: Duration = Duration::from_millis(200);
/// Questions of one peer that are taken before others have their turn.
const AT_ONCE: usize = 64;

/// The turn to ask: another import, whose peer does not answer, holds this one up to its limit at most.
struct Turn<'a>(&'a Inner);

impl<'a> Turn<'a> {
    fn take(of: &'a Inner, limit: Option<Duration>) -> Result<Self, Error> {
        let asks = unpoisoned(&of.is_asking);
        let limit = limit.unwrap_or(Duration::MAX);
        let waited = of.has_asked.wait_timeout_while(asks, limit, |asks| *asks);
        let (mut asks, _) = waited.unwrap_or_else(|e| e.into_inner());
        match core::mem::replace(&mut *asks, true) {
            true => Err(Error::TimedOut),
            false => Ok(Self(of)),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *unpoisoned(&self.0.is_asking) = false;
        self.0.has_asked.notify_one();
    }
}

impl Vmmc {
    /// [`import`](Self::import) of a program whose node is known.
    pub(crate) fn import_of(
        &self,
        node: Option<NodeId>,
        program: &str,
        buffer: &str,
        limit: Option<Duration>,
    ) -> Result<Proxy, Error> {
        if buffer.is_empty() || buffer.len() > NAME_MAX {
            return Err(Error::Misuse(format!("a buffer's name of {} bytes", buffer.len())));
        }
        let began = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let _turn = Turn::take(&self.0, left())?;
        let mut asking = unpoisoned(&self.0.asking);
        if let Some(node) = node {
            asking.nodes.insert(program.into(), node);
        }
        let mut endpoint = self.end_for(&mut asking.nodes, program, left())?;
        let mut answer = self.ask(&mut asking, &endpoint, buffer, left())?;
        if answer[0] == ELSEWHERE {
            endpoint = self.move_to_shared(endpoint, left())?;
            answer = self.ask(&mut asking, &endpoint, buffer, left())?;
        }
        if answer[0] != GRANTED {
            let text = String::from_utf8_lossy(&answer[2..]);
            let text = text.trim_end_matches('\0');
            let text: String = text.chars().filter(|char| !char.is_control()).collect();
            return Err(Error::Refused(format!("importing \"{buffer}\": {text}")));
        }
        let aperture = endpoint.import(&answer[8..], left())?;
        Ok(Proxy { vmmc: self.clone(), aperture: Arc::new(aperture) })
    }

    /// One question, and its answer. It is asked again now and then: the peer throws away those for which it
    /// has no place, as where it was long without a turn.
    fn ask(
        &self,
        asking: &mut Asking,
        endpoint: &Endpoint,
        buffer: &str,
        limit: Option<Duration>,
    ) -> Result<[u8; OOB_BYTES], Error> {
        let began = Instant::now();
        asking.number = asking.number.wrapping_add(1);
        let number = asking.number;
        // Answers to questions that were given up.
        while endpoint.take_oob()?.is_some() {}
        let question = [&[buffer.len() as u8, number], buffer.as_bytes()].concat();
        let left = || limit.map_or(Duration::MAX, |limit| limit.saturating_sub(began.elapsed()));
        let mut answer = Ok(None);
        loop {
            endpoint.send_oob(&question, limit.map(|_| left()))?;
            let waited = self.wait_until(Some(left().min(REPEAT)), || {
                loop {
                    answer = endpoint.take_oob();
                    match &answer {
                        Ok(Some(late)) if late[1] != number => {}
                        Ok(None) => return false,
                        _ => return true,
                    }
                }
            });
            match waited {
                Err(Error::TimedOut) if !left().is_zero() => {}
                waited => return waited.and(answer)?.ok_or(Error::TimedOut),
            }
        }
    }

    /// The end point over which this program asks another, which is connected if no link is there.
    fn end_for(
        &self,
        nodes: &mut HashMap<String, NodeId>,
        program: &str,
        limit: Option<Duration>,
    ) -> Result<Arc<Endpoint>, Error> {
        let own = self.0.clan.manager().id();
        if let Some(node) = nodes.get(program).copied() {
            let (asked, asker) = {
                let state = unpoisoned(&self.0.state);
                (state.asked(node), state.asker(node, |_| true))
            };
            if let Some(endpoint) = asked {
                return Ok(endpoint);
            }
            // It may end meanwhile.
            if let Some(Ok(endpoint)) = asker.map(|asker| asker.open(limit)) {
                return Ok(self.asks_over(node, endpoint));
            }
        }
        let endpoint = self.0.clan.connect(program, limit)?;
        let peer = endpoint.peer()?;
        if !peer.is_proved {
            return Err(Error::Refused(format!("\"{program}\" has not proved which node it is")));
        }
        nodes.insert(program.into(), peer.node);
        let asker = {
            let mut state = unpoisoned(&self.0.state);
            if let Some(endpoint) = state.asked(peer.node) {
                return Ok(endpoint);
            }
            match state.asker(peer.node, |asker| own > peer.node || asker.is_answered) {
                Some(asker) => asker,
                None => {
                    let endpoint = Arc::new(endpoint);
                    state.asked.insert(peer.node, endpoint.clone());
                    return Ok(endpoint);
                }
            }
        };
        Ok(self.asks_over(peer.node, asker.open(limit)?))
    }

    fn asks_over(&self, node: NodeId, endpoint: Endpoint) -> Arc<Endpoint> {
        let endpoint = Arc::new(endpoint);
        unpoisoned(&self.0.state).asked.insert(node, endpoint.clone());
        endpoint
    }

    /// The other program asks over a link of its own, which is on its way here: it is the one that stays.
    fn move_to_shared(
        &self,
        endpoint: Arc<Endpoint>,
        limit: Option<Duration>,
    ) -> Result<Arc<Endpoint>, Error> {
        let began = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let (node, link) = (endpoint.peer()?.node, endpoint.link());
        let asker = loop {
            let met = self.0.met.load(Ordering::Acquire);
            let asker =
                unpoisoned(&self.0.state).asker(node, |asker| asker.endpoint.link() != link);
            if let Some(asker) = asker {
                break asker;
            }
            let look = || met != self.0.met.load(Ordering::Acquire) || endpoint.check().is_err();
            self.wait_until(left(), look)?;
            endpoint.check()?;
        };
        Ok(self.asks_over(node, asker.open(left())?))
    }

    /// The questions of a peer, or its end. It asks one at a time, so all but the latest were given up.
    pub(crate) fn answer(&self, state: &mut State, source: u64) {
        let own = self.0.clan.manager().id();
        let State { peers, asked, names, buffers, .. } = &mut *state;
        let Some(Asker { endpoint, target, node, is_answered }) = peers.get_mut(&source) else {
            return;
        };
        let mut latest = None;
        for left in (0..AT_ONCE).rev() {
            match endpoint.take_oob() {
                Ok(None) => break,
                Ok(Some(question)) => latest = Some(question),
                Err(_) => {
                    target.queue.unregister(target.event);
                    peers.remove(&source);
                    return;
                }
            }
            if left == 0 {
                // It asks without end: the others come first.
                target.queue.raise(target.event);
            }
        }
        let Some(question) = latest else { return };
        let mut answer = [0; OOB_BYTES];
        answer[1] = question[1];
        let shared = node.filter(|node| own < *node).and_then(|node| asked.get(&node));
        let is_elsewhere =
            shared.is_some_and(|shared| shared.link() != endpoint.link() && shared.check().is_ok());
        if is_elsewhere && !*is_answered {
            answer[0] = ELSEWHERE;
        } else {
            *is_answered = true;
            let exported = |name: &str| buffers.get(names.get(name)?);
            match grant(exported, endpoint, &question) {
                Ok(handle) => {
                    answer[0] = GRANTED;
                    answer[8..8 + HANDLE_BYTES].copy_from_slice(&handle);
                }
                Err(why) => {
                    let length = why.len().min(OOB_BYTES - 2);
                    answer[2..2 + length].copy_from_slice(&why.as_bytes()[..length]);
                }
            }
        }
        // A peer that has no room for an answer gets none, and stops nobody.
        let _ = endpoint.send_oob(&answer, Some(Duration::ZERO));
    }
}

impl State {
    /// The end point over which this program asks a node, if it is open.
    fn asked(&self, node: NodeId) -> Option<Arc<Endpoint>> {
        self.asked.get(&node).filter(|endpoint| endpoint.check().is_ok()).cloned()
    }

    /// One over which the node asks here.
    fn asker(&self, node: NodeId, which: impl Fn(&Asker) -> bool) -> Option<Arc<Endpoint>> {
        let is_it = |asker: &&Asker| {
            asker.node == Some(node) && which(asker) && asker.endpoint.check().is_ok()
        };
        self.peers.values().find(is_it).map(|asker| asker.endpoint.clone())
    }
}

/// The handle for a peer that asks for a buffer.
fn grant<'a>(
    exported: impl Fn(&str) -> Option<&'a Exported>,
    endpoint: &Endpoint,
    question: &[u8],
) -> Result<[u8; HANDLE_BYTES], String> {
    let name = question.get(2..).and_then(|rest| rest.get(..question[0] as usize));
    let name = name.and_then(|name| core::str::from_utf8(name).ok()).ok_or("no name")?;
    let peer = endpoint.peer().map_err(|e| e.to_string())?;
    let is_one_of = |exported: &&Exported| match &exported.exporting.users {
        Users::All => true,
        Users::Same => peer.is_proved && peer.uid == Some(own_user()),
        Users::These(users) => peer.is_proved && peer.uid.is_some_and(|uid| users.contains(&uid)),
    };
    // The same words for both: a stranger does not learn which buffers there are.
    let exported = exported(name).filter(is_one_of);
    let exported = exported.ok_or("there is no such buffer for this user")?;
    let Exporting { rights, notifications, .. } = exported.exporting;
    let export = exported.region.export_signalled(endpoint, rights, notifications);
    export.map(|export| export.handle).map_err(|e| e.to_string())
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

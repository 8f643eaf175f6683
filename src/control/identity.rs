//! The identity of a process's node, so that no other process can claim it.
//!
//! A node has a key pair that lives as long as it does. Its id is the beginning of the hash of the
//! public key, and its [`Credential`] says, signed, which process it is: the number that the kernel
//! gave that process and will give no other until the machine starts anew. Each end of a socket
//! asks the kernel which process is at the other end. So a credential is useless to any process
//! that saw it elsewhere, and no challenge has to be answered.
//!
//! Tickets are routed by id: a process that could claim an id would be sent the keys in them. A
//! ticket has room for 64 bits of hash; finding another key pair with a given id takes 2^63 tries
//! of making a key, for an id that is worthless when its node has gone.

use super::frame::{Credential, PUBLIC_KEY_BYTES};
use super::machine::Verdict;
use crate::os::{socket, sys};
use crate::wire::NodeId;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};
use std::io;
use std::vec::Vec;

/// A node's key, and its credential. If there are no other hosts, the secret key is forgotten after
/// it has signed.
#[derive(Clone, Debug)]
pub struct Identity {
    credential: Credential,
    #[cfg(feature = "tls")]
    key: SigningKey,
}

impl Identity {
    /// A new node of this process.
    pub fn new() -> io::Result<Self> {
        let key = SigningKey::from_bytes(&sys::random()?);
        let public_key = key.verifying_key().to_bytes();
        let mut credential = Credential {
            node: node_of(&public_key),
            public_key,
            process: socket::own_process_number().unwrap_or(0),
            pid_namespace: pid_namespace(),
            pid: std::process::id(),
            boot: boot(),
            ..Credential::NONE
        };
        credential.signature = key.sign(&statement(&credential)).to_bytes();
        Ok(Self {
            credential,
            #[cfg(feature = "tls")]
            key,
        })
    }

    /// The public key, and a signature with it.
    #[cfg(feature = "tls")]
    pub fn sign(&self, statement: &[u8]) -> ([u8; PUBLIC_KEY_BYTES], [u8; 64]) {
        (self.credential.public_key, self.key.sign(statement).to_bytes())
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.credential.node
    }

    /// The credential that it shows when it connects.
    pub fn credential(&self) -> Credential {
        self.credential
    }
}

/// Whether the holder of this key has signed that.
pub(super) fn is_signed(public_key: &[u8; 32], statement: &[u8], signature: &[u8]) -> bool {
    VerifyingKey::from_bytes(public_key).is_ok_and(|key| {
        let signature = Signature::from_slice(signature);
        signature.is_ok_and(|signature| key.verify_strict(statement, &signature).is_ok())
    })
}

/// The node of the holder of this key.
pub(super) fn node_of(public_key: &[u8; PUBLIC_KEY_BYTES]) -> NodeId {
    let hash = Sha256::new().chain_update(b"hamlyn node 1").chain_update(public_key).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    NodeId(u64::from_le_bytes(first))
}

/// The bytes that are signed.
fn statement(credential: &Credential) -> Vec<u8> {
    let mut bytes = b"hamlyn credential 1".to_vec();
    bytes.extend_from_slice(&credential.node.0.to_le_bytes());
    bytes.extend_from_slice(&credential.process.to_le_bytes());
    bytes.extend_from_slice(&credential.pid_namespace.to_le_bytes());
    bytes.extend_from_slice(&credential.pid.to_le_bytes());
    bytes.extend_from_slice(&credential.boot);
    bytes
}

/// The id of this start of the machine; zeros if it is hidden.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let mut boot = [0; 16];
    for (byte, pair) in boot.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    boot
}

/// The namespace in which this process's number counts; 0 if it is hidden.
fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// Whether a credential is that of the process at the other end of a socket. The kernel gives the
/// number that only that process has and, if no other process can have it by now, its number in
/// this namespace. Before Linux 6.5 the kernel cannot exclude that: a process that connects, leaves
/// the socket to a child and dies may be taken for another process that gets its number later.
pub fn verify(credential: &Credential, process: Option<u64>, pid: Option<u32>) -> Verdict {
    if node_of(&credential.public_key) != credential.node {
        return Verdict::False("its id is not the hash of its key");
    }
    let statement = statement(credential);
    if !is_signed(&credential.public_key, &statement, &credential.signature) {
        return Verdict::False("its credential is not signed with its key");
    }
    let boot = boot();
    if credential.boot != boot && credential.boot != [0; 16] && boot != [0; 16] {
        return Verdict::False("its credential is of another start of the machine");
    }
    let namespace = pid_namespace();
    let is_own = match (process, pid) {
        (Some(process), _) if credential.process != 0 => process == credential.process,
        // It has a number of its own, which could not be found out here.
        (None, _) if credential.process != 0 && socket::own_process_number().is_some() => {
            return Verdict::Unproved;
        }
        // Before Linux 6.9: in the same namespace a process can be told by its number.
        (_, Some(pid)) if credential.pid_namespace == namespace && namespace != 0 => {
            pid == credential.pid
        }
        _ => return Verdict::Unproved,
    };
    if is_own { Verdict::Proved } else { Verdict::False("its credential is another process's") }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_credential_proves_its_node_to_whoever_sees_its_process() {
        let identity = Identity::new().unwrap();
        let own = identity.credential();
        assert_ne!(identity.node(), Identity::new().unwrap().node());
        let (process, pid) = (socket::own_process_number(), Some(std::process::id()));
        assert_eq!(verify(&own, process, pid), Verdict::Proved);
        // By its number alone only if there is nothing better.
        let by_number = if process.is_some() { Verdict::Unproved } else { Verdict::Proved };
        assert_eq!(verify(&own, None, pid), by_number);
        assert_eq!(verify(&own, None, None), Verdict::Unproved);
    }

    #[test]
    fn a_credential_is_of_no_use_to_anybody_else() {
        let own = Identity::new().unwrap().credential();
        let other = Identity::new().unwrap().credential();
        let is_false = |credential: &Credential, process, pid| {
            assert!(matches!(verify(credential, process, pid), Verdict::False(_)));
        };
        is_false(&own, Some(own.process + 1), Some(own.pid));
        if socket::own_process_number().is_none() {
            is_false(&own, None, Some(own.pid + 1));
        }
        let (process, pid) = (Some(own.process), Some(own.pid));
        is_false(&Credential { node: other.node, ..own }, process, pid);
        is_false(&Credential { public_key: other.public_key, ..own }, process, pid);
        is_false(&Credential { signature: other.signature, ..own }, process, pid);
        is_false(&Credential { process: own.process + 1, ..own }, Some(own.process + 1), pid);
        is_false(&Credential { boot: [7; 16], ..own }, process, pid);
        is_false(&Credential::NONE, process, pid);
    }
}

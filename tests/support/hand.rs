//! A host by hand: it speaks TLS like a host, and its test chooses the frames.
#![allow(dead_code)]

use hamlyn::Config;
use hamlyn::control::Identity;
use hamlyn::control::hosts::hello::{HelloIdentity, VERSION};
use hamlyn::control::hosts::keys::{Keys, TlsEnd};
use hamlyn::transport::channel::Channel;
use std::net::{SocketAddr, TcpStream};

pub struct Hand {
    keys: Keys,
    pub identity: Identity,
}

impl Hand {
    pub fn new(config: &Config) -> Self {
        Self { keys: Keys::load(config).unwrap(), identity: Identity::new().unwrap() }
    }

    /// Connects to the listener there.
    pub fn client(&self, at: SocketAddr) -> Channel {
        let tcp = TcpStream::connect(at).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let name = "localhost".try_into().unwrap();
        let tls = rustls::ClientConnection::new(self.keys.client.clone(), name).unwrap();
        Channel::new(tcp, tls.into())
    }

    /// Of a connection that was made to it.
    pub fn server(&self, tcp: TcpStream) -> Channel {
        tcp.set_nonblocking(true).unwrap();
        let tls = rustls::ServerConnection::new(self.keys.server.clone()).unwrap();
        Channel::new(tcp, tls.into())
    }

    /// The proof on this connection that `end` has the secret.
    pub fn proof(&self, end: TlsEnd, channel: &Channel) -> [u8; 32] {
        self.keys.proof(end, &channel.key().unwrap())
    }

    /// Its identity, as this end of this connection.
    pub fn who(&self, end: TlsEnd, channel: &Channel) -> HelloIdentity {
        let key = channel.key().unwrap();
        let is_client = [u8::from(end == TlsEnd::Client)];
        let (public_key, signature) =
            self.identity.sign(&[b"hamlyn host 1 ".as_slice(), &is_client, &*key].concat());
        HelloIdentity {
            version: VERSION,
            node: self.identity.node().0,
            public_key,
            signature: signature.to_vec(),
            proof: self.proof(end, channel),
            packet_bytes: 4096,
        }
    }
}

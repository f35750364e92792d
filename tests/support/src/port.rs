//! Ports on the loopback interface that stay ours.
//!
//! "Bind to port 0, look, close" hands out a port that the kernel may give to any outgoing connection a moment later,
//! and a server that is to come back on the same port finds it taken. Reserved ports therefore lie below the kernel's
//! own range, and who reserves one holds a name for it that no other process can take until the reservation ends: that of an
//! abstract Unix socket. Such names are known exactly where ports are, in one network namespace, whoever's the processes
//! are and whatever files they see; a lock in a temporary directory is not seen by those that have another one.
//! Nothing has to be cleaned up: names end with their process.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use rand::RngExt as _;

/// Below this lie ports that well-known servers use.
const LOWEST: u16 = 12_000;
/// Where the kernel's range starts when it does not say.
const USUAL_EPHEMERAL: u16 = 32_768;

static KEPT: Mutex<Vec<ReservedPort>> = Mutex::new(Vec::new());

/// A port that no other test process gets while this value lives.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _name: UnixDatagram,
}

impl ReservedPort {
    /// Reserves a port on which nobody listens.
    ///
    /// # Errors
    /// When none is left, or their names cannot be asked for.
    pub fn reserve() -> Result<Self> {
        let highest = ephemeral_start().max(LOWEST + 1);
        let width = highest - LOWEST;
        let first = rand::rng().random_range(0..width);
        for step in 0..width {
            // Both are below `width`, which is at most 53,535, so the sum needs 32 bits.
            let offset = (u32::from(first) + u32::from(step)) % u32::from(width);
            let number = LOWEST + u16::try_from(offset)?;
            let Some(port) = Self::reserve_this(number)? else {
                continue;
            };
            if TcpListener::bind(port.addr()).is_ok() {
                return Ok(port);
            }
        }
        bail!("no free port between {LOWEST} and {highest}")
    }

    /// `None`: it is reserved.
    fn reserve_this(number: u16) -> Result<Option<Self>> {
        let name = UnixAddr::from_abstract_name(format!("tidegate-test-port-{number}"))?;
        match UnixDatagram::bind_addr(&name) {
            Ok(name) => Ok(Some(Self {
                number,
                _name: name,
            })),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error).context("cannot ask for the name of a port"),
        }
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// 127.0.0.1 with this port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// A port on 127.0.0.1 that stays reserved until this process ends.
///
/// Better is a server that binds to port 0 and says which port it got.
///
/// # Errors
/// See [`ReservedPort::reserve`].
pub fn free_port() -> Result<u16> {
    let port = ReservedPort::reserve()?;
    let number = port.number();
    KEPT.lock().push(port);
    Ok(number)
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(USUAL_EPHEMERAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_given_once() {
        let ports: Vec<_> = (0..50).map(|_| ReservedPort::reserve().unwrap()).collect();
        let mut numbers: Vec<_> = ports.iter().map(ReservedPort::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
    }

    #[test]
    fn a_port_is_reserved_until_its_reservation_ends() {
        let port = ReservedPort::reserve().unwrap();
        let number = port.number();
        assert!(ReservedPort::reserve_this(number).unwrap().is_none());
        drop(port);
        assert!(ReservedPort::reserve_this(number).unwrap().is_some());
    }

    #[test]
    fn a_reserved_port_can_be_bound_again_and_again() {
        let port = ReservedPort::reserve().unwrap();
        for _ in 0..3 {
            drop(TcpListener::bind(port.addr()).unwrap());
        }
    }
}

//! Who is at the other end of the control socket.

use tokio::net::UnixStream;

/// Whether the program at the other end runs for the same user as this one: of a front end, which connected; of a daemon, which
/// listens. One that cannot be asked does not.
#[must_use]
pub fn is_of_own_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| is_own(peer.uid()))
}

fn is_own(uid: u32) -> bool {
    uid == nix::unistd::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_own_user_is_the_own_user() {
        let (one, other) = UnixStream::pair().unwrap();
        assert!(is_of_own_user(&one) && is_of_own_user(&other));
        let own = nix::unistd::geteuid().as_raw();
        assert!(is_own(own) && !is_own(own + 1) && !is_own(own ^ 65_534));
    }
}

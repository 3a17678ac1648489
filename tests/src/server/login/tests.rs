use super::*;
use crate::generator::{Account, MARLOW, Recipe, TERNBERG};

const START: Timestamp = Timestamp::constant(1_790_000_010, 0);

fn at(seconds: i64) -> Timestamp {
    START.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

struct Desk {
    world: World,
    logins: Logins,
}

impl Desk {
    fn new(throttle: bool) -> Self {
        Self { world: Recipe::new(0, 0).generate().unwrap(), logins: Logins::new(Duration::from_secs(7_200), throttle) }
    }

    fn try_with(
        &mut self,
        account: Account,
        passphrase: &str,
        code: &str,
        now: Timestamp,
    ) -> Result<Opened, LoginRefusal> {
        let credentials = Credentials { username: account.username, passphrase, one_time_code: code };
        self.logins.log_in(&self.world, now, &credentials)
    }

    fn log_in(&mut self, account: Account, now: Timestamp) -> Result<Opened, LoginRefusal> {
        self.try_with(account, account.passphrase, &account.code_at(now), now)
    }
}

#[test]
fn a_code_is_burnt_by_a_wrong_passphrase() {
    let mut desk = Desk::new(false);
    let code = MARLOW.code_at(at(0));
    let wrong = desk.try_with(MARLOW, "not the passphrase at all", &code, at(0));
    assert_eq!(wrong.unwrap_err(), LoginRefusal::WrongPassphrase);
    assert_eq!(desk.log_in(MARLOW, at(1)).unwrap_err(), LoginRefusal::ReusedCode);
    desk.log_in(MARLOW, at(30)).unwrap();
}

#[test]
fn only_the_last_code_is_remembered() {
    // A code of the step before is still good, even after the present one was used.
    let mut desk = Desk::new(false);
    desk.log_in(MARLOW, at(0)).unwrap();
    assert_eq!(desk.log_in(MARLOW, at(0)).unwrap_err(), LoginRefusal::ReusedCode);
    let before = MARLOW.code_at(at(-30));
    desk.try_with(MARLOW, MARLOW.passphrase, &before, at(0)).unwrap();
    desk.log_in(MARLOW, at(0)).unwrap();
}

#[test]
fn a_wrong_code_burns_nothing_and_users_do_not_share_codes() {
    let mut desk = Desk::new(false);
    let wrong = desk.try_with(MARLOW, MARLOW.passphrase, "not it", at(0));
    assert_eq!(wrong.unwrap_err(), LoginRefusal::WrongCode);
    let stale = MARLOW.code_at(at(-90));
    let stale = desk.try_with(MARLOW, MARLOW.passphrase, &stale, at(0));
    assert_eq!(stale.unwrap_err(), LoginRefusal::WrongCode);
    desk.log_in(MARLOW, at(0)).unwrap();
    desk.log_in(TERNBERG, at(0)).unwrap();
}

#[test]
fn nobody_signs_in_as_deleted_or_as_a_stranger() {
    let mut desk = Desk::new(false);
    for username in ["deleted", "stranger", ""] {
        let account = Account { username, ..MARLOW };
        assert_eq!(desk.log_in(account, at(0)).unwrap_err(), LoginRefusal::UnknownUser);
    }
}

#[test]
fn the_sixth_attempt_in_a_minute_is_throttled_and_burns_nothing() {
    let mut desk = Desk::new(true);
    for second in 0..5 {
        let wrong = desk.try_with(MARLOW, MARLOW.passphrase, "000000", at(second));
        assert_eq!(wrong.unwrap_err(), LoginRefusal::WrongCode);
    }
    assert_eq!(desk.log_in(MARLOW, at(5)).unwrap_err(), LoginRefusal::Throttled);
    desk.log_in(TERNBERG, at(5)).unwrap();
    // By now the first two attempts are a minute old, and the code above was never looked at.
    let code = MARLOW.code_at(at(5));
    assert_eq!(desk.try_with(MARLOW, MARLOW.passphrase, &code, at(59)).unwrap_err(), LoginRefusal::Throttled);
    desk.log_in(MARLOW, at(66)).unwrap();
}

#[test]
fn without_the_option_nobody_is_throttled() {
    let mut desk = Desk::new(false);
    for _ in 0..20 {
        let wrong = desk.try_with(MARLOW, MARLOW.passphrase, "000000", at(0));
        assert_eq!(wrong.unwrap_err(), LoginRefusal::WrongCode);
    }
    desk.log_in(MARLOW, at(0)).unwrap();
}

#[test]
fn a_session_ends_at_its_end_unless_it_is_used_shortly_before() {
    let mut desk = Desk::new(false);
    let idle = desk.log_in(MARLOW, at(0)).unwrap();
    assert_eq!(idle.expires, at(7_200));
    assert!(desk.logins.use_token(&idle.token, at(5_399)).is_some());
    assert_eq!(desk.logins.use_token(&idle.token, at(7_200)), None);

    let used = desk.log_in(TERNBERG, at(0)).unwrap();
    assert!(desk.logins.use_token(&used.token, at(5_410)).is_some());
    assert!(desk.logins.use_token(&used.token, at(7_200)).is_some());
    assert_eq!(desk.logins.use_token(&used.token, at(14_400)), None);
}

#[test]
fn a_session_is_prolonged_five_times() {
    let mut desk = Desk::new(false);
    let opened = desk.log_in(MARLOW, at(0)).unwrap();
    for lifetime in 1..=6 {
        let end = lifetime * 7_200;
        assert!(desk.logins.use_token(&opened.token, at(end - 1)).is_some(), "lifetime {lifetime}");
    }
    assert_eq!(desk.logins.use_token(&opened.token, at(6 * 7_200)), None);
}

#[test]
fn logging_out_ends_one_session_and_revoking_ends_a_journalists() {
    let mut desk = Desk::new(false);
    let first = desk.log_in(MARLOW, at(0)).unwrap();
    let second = desk.log_in(MARLOW, at(30)).unwrap();
    let other = desk.log_in(TERNBERG, at(30)).unwrap();
    assert_ne!(first.token, second.token);
    desk.logins.log_out(&first.token);
    assert_eq!(desk.logins.use_token(&first.token, at(31)), None);
    assert!(desk.logins.use_token(&second.token, at(31)).is_some());
    assert_eq!(desk.logins.revoke(Some(&second.journalist)), 1);
    assert_eq!(desk.logins.use_token(&second.token, at(31)), None);
    assert!(desk.logins.use_token(&other.token, at(31)).is_some());
    assert_eq!(desk.logins.revoke(None), 1);
}

#[test]
fn tokens_have_the_real_ones_form() {
    let token = token();
    let lengths: Vec<_> = token.split('.').map(str::len).collect();
    assert_eq!(lengths, [62, 6, 27]);
    assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)));
}

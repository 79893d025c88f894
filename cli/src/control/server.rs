//! The control socket's server: a thread with a tokio runtime of its own, and nothing of the data path in it.
//!
//! It also catches SIGTERM and SIGINT. What ends the array goes to the main thread as an [`Event`]; everything else is carried out
//! here, on at most [`BLOCKING_THREADS`] threads, because commands wait for the array.
//!
//! It is there before the array is, so that a name that is taken is found out before anything is written; until
//! [`ControlServer::serve`], requests are answered with 503.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use raid_engine::array::{CommandError, CommandErrorKind};
use raid_engine::member::aoe::Care;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::messages::{AoeDevice, Counters, Failure, FlushPaths, Member, SetInterfaces, Stopped, Tune};
use crate::notify;
use crate::run::served::Served;
use crate::sandbox::Sandbox;
use crate::signals::Signals;

/// Commands carried out at a time; more wait.
const BLOCKING_THREADS: usize = 8;

/// Longest path of a Unix socket in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// How long clients may take to read their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// How often members that are reserved for this host are asked, so that a reservation that was lost is noticed though nothing is written.
const RESERVED_LOOK: Duration = Duration::from_secs(1);

/// For the main thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// SIGTERM or SIGINT.
    Signal(&'static str),
    /// `stop`; the exit status is sent when the array has ended.
    Stop(oneshot::Sender<i32>),
}

impl Event {
    /// Who wants the end.
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Event::Signal(name) => name,
            Event::Stop(_) => "stop",
        }
    }
}

/// What requests are carried out with.
#[derive(Clone, Debug)]
struct Handles {
    served: Arc<OnceLock<Arc<Served>>>,
    events: SyncSender<Event>,
}

/// The server. See the module's text.
#[derive(Debug)]
pub(crate) struct ControlServer {
    served: Arc<OnceLock<Arc<Served>>>,
    socket: SocketFile,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens on `path`, and catches signals from now on. The thread keeps what `sandbox` keeps.
    pub(crate) fn start(
        path: &Path,
        events: SyncSender<Event>,
        sandbox: Arc<Sandbox>,
    ) -> anyhow::Result<ControlServer> {
        let (listener, socket) = bind(path)?;
        let served = Arc::new(OnceLock::new());
        let context = Handles { served: Arc::clone(&served), events };
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let runtime = match sandbox.enter().and_then(|()| runtime()) {
                Ok(runtime) => runtime,
                Err(error) => {
                    // Who waits for it is there.
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            runtime.block_on(serve(listener, context, ready, ended));
            runtime.shutdown_timeout(LAST_ANSWERS);
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(body)?;
        is_ready.recv().context("the control thread has died")?.context("control socket")?;
        Ok(ControlServer { served, socket, end: Some(end), thread: Some(thread) })
    }

    /// From now on requests are carried out.
    pub(crate) fn serve(&self, served: Arc<Served>) {
        assert!(self.served.set(served).is_ok(), "a control server serves one array");
    }

    /// Takes the socket away: another array may have it. Requests that are under way are still answered.
    pub(crate) fn unbind(&self) {
        self.socket.remove();
    }

    /// Takes the socket away, lets the last answers out, and ends the thread.
    pub(crate) fn finish(mut self) {
        self.unbind();
        if let (Some(end), Some(thread)) = (self.end.take(), self.thread.take()) {
            // It has ended by itself if nobody listens.
            let _ = end.send(());
            if thread.join().is_err() {
                tracing::error!("the control thread had panicked");
            }
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?)
}

async fn serve(
    listener: UnixListener,
    context: Handles,
    ready: SyncSender<anyhow::Result<()>>,
    ended: oneshot::Receiver<()>,
) {
    let made = Signals::new().and_then(|signals| Ok((signals, tokio::net::UnixListener::from_std(listener)?)));
    let (signals, listener) = match made {
        Ok(made) => made,
        Err(error) => {
            let _ = ready.send(Err(error.into()));
            return;
        }
    };
    tokio::spawn(pass_signals(signals, context.events.clone()));
    tokio::spawn(watchdog(Arc::clone(&context.served)));
    tokio::spawn(ask_reserved(Arc::clone(&context.served)));
    let router = Router::new()
        .route("/detail", get(detail))
        .route("/counters", get(counters))
        .route("/paths", get(paths))
        .route("/tunables", get(tunables))
        .route("/tune", post(tune))
        .route("/add", post(add))
        .route("/fail", post(fail))
        .route("/remove", post(remove))
        .route("/interfaces", get(interfaces).post(set_interfaces))
        .route("/revalidate", post(revalidate))
        .route("/flush", post(flush))
        .route("/stop", post(stop))
        .fallback(async || failure(StatusCode::NOT_FOUND, "no such request: see docs/CONTROL.md".to_owned()))
        .method_not_allowed_fallback(async || {
            failure(StatusCode::METHOD_NOT_ALLOWED, "GET is for what reads, POST for what changes".to_owned())
        })
        .with_state(context);
    let _ = ready.send(Ok(()));
    let (told, is_told) = oneshot::channel();
    let until_ended = async move {
        // A sender that is gone ends it as well.
        let _ = ended.await;
        let _ = told.send(());
    };
    let last_answers = async move {
        let _ = is_told.await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        ended = axum::serve(listener, router).with_graceful_shutdown(until_ended) => {
            if let Err(error) = ended {
                tracing::error!(%error, "control socket");
            }
        }
        () = last_answers => {}
    }
}

async fn pass_signals(mut signals: Signals, events: SyncSender<Event>) {
    loop {
        let name = signals.next().await;
        // A full channel means that the main thread has been told often enough.
        let _ = events.try_send(Event::Signal(name));
    }
}

/// Tells the service manager that the array answers, if it wants to know.
async fn watchdog(served: Arc<OnceLock<Arc<Served>>>) {
    let Some(period) = notify::watchdog() else { return };
    loop {
        tokio::time::sleep(period).await;
        let Some(served) = served.get().cloned() else { continue };
        if let Ok(Ok(_)) = tokio::task::spawn_blocking(move || served.running().detail()).await {
            notify::alive();
        }
    }
}

/// Asks reserved members now and then: the first to say that somebody else has them fences the array.
async fn ask_reserved(served: Arc<OnceLock<Arc<Served>>>) {
    loop {
        tokio::time::sleep(RESERVED_LOOK).await;
        let Some(served) = served.get().filter(|served| served.reserves_members()).cloned() else { continue };
        // Refused when the array has ended, and soon all of this with it.
        let _ = tokio::task::spawn_blocking(move || served.care(None, Care::Ask)).await;
    }
}

/// What a request asks for, as JSON. What is none is answered as every failure is.
struct Asked<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Asked<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Json::from_request(request, state).await {
            Ok(Json(asked)) => Ok(Asked(asked)),
            Err(rejection) => Err(failure(rejection.status(), rejection.body_text())),
        }
    }
}

fn failure(status: StatusCode, error: String) -> Response {
    (status, Json(Failure { error })).into_response()
}

fn refused(error: &CommandError) -> Response {
    let status = match error.kind {
        CommandErrorKind::NoDevice => StatusCode::NOT_FOUND,
        CommandErrorKind::Busy | CommandErrorKind::ReadOnly => StatusCode::CONFLICT,
        CommandErrorKind::TooSmall | CommandErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        CommandErrorKind::Io => StatusCode::BAD_GATEWAY,
        CommandErrorKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
    };
    failure(status, error.text.clone())
}

/// Runs what waits for the array where it holds up nothing else.
async fn with_array<T, F>(context: Handles, work: F) -> Response
where
    T: serde::Serialize + Send + 'static,
    F: FnOnce(&Served) -> Result<T, CommandError> + Send + 'static,
{
    let Some(served) = context.served.get().cloned() else {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "the array is still being started: try again".to_owned());
    };
    match tokio::task::spawn_blocking(move || work(&served)).await {
        Ok(Ok(done)) => Json(done).into_response(),
        Ok(Err(error)) => refused(&error),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn detail(State(context): State<Handles>) -> Response {
    with_array(context, Served::detail).await
}

async fn counters(State(context): State<Handles>) -> Response {
    with_array(context, |served| Ok(Counters::from(served.running().totals()))).await
}

async fn paths(State(context): State<Handles>) -> Response {
    let shown = |paths: Vec<_>| paths.into_iter().map(AoeDevice::from).collect::<Vec<_>>();
    with_array(context, move |served| served.running().paths().map(shown)).await
}

async fn tunables(State(context): State<Handles>) -> Response {
    with_array(context, |served| Ok(served.tunables())).await
}

async fn tune(State(context): State<Handles>, Asked(Tune { set }): Asked<Tune>) -> Response {
    with_array(context, move |served| served.tune(&set)).await
}

async fn add(State(context): State<Handles>, Asked(Member { member }): Asked<Member>) -> Response {
    with_array(context, move |served| served.add(&member)).await
}

async fn fail(State(context): State<Handles>, Asked(Member { member }): Asked<Member>) -> Response {
    with_array(context, move |served| served.fail(&member)).await
}

async fn remove(State(context): State<Handles>, Asked(Member { member }): Asked<Member>) -> Response {
    with_array(context, move |served| served.remove(&member)).await
}

async fn interfaces(State(context): State<Handles>) -> Response {
    with_array(context, Served::interfaces).await
}

async fn set_interfaces(
    State(context): State<Handles>,
    Asked(SetInterfaces { interfaces }): Asked<SetInterfaces>,
) -> Response {
    with_array(context, move |served| served.set_interfaces(interfaces)).await
}

async fn revalidate(State(context): State<Handles>, Asked(Member { member }): Asked<Member>) -> Response {
    with_array(context, move |served| served.care(Some(&member), Care::Revalidate)).await
}

async fn flush(State(context): State<Handles>, Asked(FlushPaths { member, all }): Asked<FlushPaths>) -> Response {
    with_array(context, move |served| served.care(member.as_deref(), Care::Flush { all })).await
}

async fn stop(State(context): State<Handles>) -> Response {
    let (to, from) = oneshot::channel();
    if context.events.try_send(Event::Stop(to)).is_err() {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "the array is being stopped already".to_owned());
    }
    match from.await {
        Ok(exit) => Json(Stopped { exit }).into_response(),
        Err(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the array has ended".to_owned()),
    }
}

/// The socket's file; removed with it, if it is still the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    file: (u64, u64),
    /// Once it is, a file with its numbers is another array's: file systems use them again.
    removed: AtomicBool,
}

impl SocketFile {
    fn remove(&self) {
        if self.removed.swap(true, Ordering::Relaxed) {
            return;
        }
        let metadata = std::fs::symlink_metadata(&self.path);
        if metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the control socket");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Binds a socket that only its owner may use. One left behind by a dead process is replaced.
fn bind(path: &Path) -> anyhow::Result<(UnixListener, SocketFile)> {
    let listening = || format!("control socket {} (another is chosen with --control)", path.display());
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        bail!(
            "control socket {} is {length} bytes long, the limit is {SOCKET_PATH_MAX}: choose a shorter one with --control",
            path.display()
        );
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(parent).with_context(listening)?;
    // Two processes that find the same dead socket would each take the other's away.
    directory.lock().with_context(listening)?;
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            bail!("{} exists and is not a socket: remove it, or choose another --control", path.display());
        }
        match UnixStream::connect(path) {
            Ok(_) => bail!("a running array answers at {}: choose another name or --control", path.display()),
            // Its process has died.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).with_context(listening)?;
            }
            Err(error) => return Err(error).with_context(listening),
        }
    }
    // The file must not be open to others even for a moment; no other thread makes files yet.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    let listener = listener.with_context(listening)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).with_context(listening)?;
    listener.set_nonblocking(true).with_context(listening)?;
    let metadata = std::fs::symlink_metadata(path).with_context(listening)?;
    Ok((
        listener,
        SocketFile { path: path.to_owned(), file: (metadata.dev(), metadata.ino()), removed: AtomicBool::new(false) },
    ))
}

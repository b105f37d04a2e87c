//! Routes of the server, without sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;

use super::access::{Access, Refusal, TOKEN, is_foreign};
use super::answer::{AnswerError, StudyAnswer};
use super::form::{Field, Form, MachineField, STUDY_NAME, Slot, StudyText};
use super::jobs::{Job, JobError, JobResult, Jobs, Submission, Ticket, TicketGuard};
use super::page::{self, Content};

/// Maximum length of a request's body, in bytes.
const MAX_BODY: usize = 16 * 1024;

/// Time after which a request is given up.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a request of the page waits for its answer before it reports progress.
const POLL: Duration = Duration::from_secs(1);

/// Time that a page waits for its answer when it is opened.
const PAGE_PATIENCE: Duration = Duration::from_secs(2);

/// Time that a download waits for its answer.
const DOWNLOAD_PATIENCE: Duration = Duration::from_secs(25);

/// Only the page's own style sheets and scripts, and requests to the server itself.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const TOML: &str = "application/toml";

/// Type of the bodies that the page sends.
const FORM: &str = "application/x-www-form-urlencoded";

/// Shared state of the routes.
#[derive(Clone, Debug)]
struct ServerState {
    access: Arc<Access>,
    jobs: Arc<Jobs>,
}

/// Creates the routes of a server.
pub fn router(access: Access, jobs: Arc<Jobs>) -> Router {
    let base = access.base().to_owned();
    // Literal braces of a path would be parameters; the base has none.
    let address = |path: &str| format!("{base}{path}");
    let shared = ServerState { access: Arc::new(access), jobs };
    Router::new()
        .route(&address(""), get(open_page))
        .route(&address("report.css"), get(async || content(CSS, fabricast_reports::page::style())))
        .route(&address("report.js"), get(async || content(JAVASCRIPT, fabricast_reports::page::SCRIPT)))
        .route(&address("serve.css"), get(async || content(CSS, page::STYLE)))
        .route(&address("serve.js"), get(async || content(JAVASCRIPT, page::SCRIPT)))
        .route(&address("answers"), post(submit))
        .route(&address("answers/{ticket}"), get(poll))
        .route(&address("answers/{ticket}/stop"), post(stop))
        .route(&address("study.toml"), get(download_study))
        .route(&address("results.json"), get(download_results))
        .route(&address("report.html"), get(download_report))
        .fallback(async || failure(StatusCode::NOT_FOUND, "there is no such page"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

/// Checks access, limits the time of a request, and adds the headers of every response.
async fn guard(State(shared): State<ServerState>, request: Request, next: Next) -> Response {
    let mut response = match check(&shared.access, &request) {
        Err(refusal) => failure(refusal.status(), &refusal.to_string()),
        Ok(Some(response)) => response,
        Ok(None) => match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
            Ok(response) => response,
            Err(_) => failure(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
        },
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Checks a request. A request that opens the page with the token is answered by a link without it, which a browser
/// can pass on, and by a cookie.
///
/// # Errors
/// [`Refusal`].
fn check(access: &Access, request: &Request) -> Result<Option<Response>, Refusal> {
    access.check_origin(request.method(), request.uri(), request.headers())?;
    let query = request.uri().query().unwrap_or_default();
    let pairs = || form_urlencoded::parse(query.as_bytes());
    let base = access.base();
    if let Some(token) = access.token.as_ref().filter(|_| request.uri().path() == base)
        && let Some((_, value)) = pairs().find(|(key, _)| key == TOKEN)
    {
        if !token.is_equal(&value) {
            return Err(Refusal::Token);
        }
        let rest = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs().filter(|(key, _)| key != TOKEN))
            .finish();
        let address = if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") };
        let headers = [(header::LOCATION, address), (header::SET_COOKIE, token.set_cookie())];
        return Ok(Some((StatusCode::SEE_OTHER, headers).into_response()));
    }
    access.check_token(request.headers())?;
    Ok(None)
}

/// Page with the form of a link and, if it answers soon, its answer. For a link on another site nothing is computed:
/// the page's script sends the form.
async fn open_page(State(shared): State<ServerState>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let query = query.unwrap_or_default();
    let form = match Form::from_query(&query) {
        Ok(form) => form,
        Err(error) => {
            let html = page::page(&Form::default(), &Content::Invalid(error));
            return (StatusCode::BAD_REQUEST, content(HTML, html)).into_response();
        }
    };
    let page_content = match query.is_empty() || is_foreign(&headers) {
        true => Content::Empty,
        false => match await_answer(&shared, &form, PAGE_PATIENCE).await {
            Ok(Some(Ok(answered))) => Content::Answer(answered),
            Ok(Some(Err(AnswerError::Refused(error)))) => Content::Refused(error),
            Ok(Some(Err(error))) => Content::Failed(error.to_string()),
            Ok(None) => Content::Running,
            Err(error) => Content::Failed(error.to_string()),
        },
    };
    content(HTML, page::page(&form, &page_content)).into_response()
}

/// Hands a form in, and waits for its answer. If there is none yet, the computation continues until its ticket expires,
/// so that the same request joins it when it is repeated. A client that leaves meanwhile returns its ticket.
///
/// # Errors
/// [`JobError`]: the form was not taken.
async fn await_answer(shared: &ServerState, form: &Form, patience: Duration) -> Result<Option<JobResult>, JobError> {
    match shared.jobs.submit(StudyText::new(form), Instant::now())? {
        Submission::Answered(answered) => Ok(Some(Ok(answered))),
        Submission::Running(ticket, job) => {
            let waiting = TicketGuard::new(Arc::clone(&shared.jobs), ticket.clone());
            let end = Instant::now() + patience;
            loop {
                let rest = end.saturating_duration_since(Instant::now());
                let result = job.result(rest.min(POLL)).await;
                if result.is_some() {
                    return Ok(result);
                }
                if rest <= POLL {
                    waiting.keep();
                    return Ok(None);
                }
                // Patience is longer than a ticket is valid.
                shared.jobs.show(&ticket, Instant::now())?;
            }
        }
    }
}

/// Form as the page must show it.
#[derive(Debug, Serialize)]
struct FormReply {
    /// Query of the link that holds the form.
    query: String,
    /// Names of the fields that apply.
    applies: Vec<String>,
    /// Notes on the prices of machines, by the name of the field.
    notes: BTreeMap<String, String>,
}

impl FormReply {
    fn new(form: &Form) -> Self {
        let applies = Field::all().filter(|field| form.applies(*field)).map(Field::key).collect();
        let notes = Slot::ALL.into_iter().filter_map(|slot| {
            let key = Field::Machine(slot, MachineField::Price).key();
            Some((key, form.price_note(slot)?))
        });
        Self { query: form.query(), applies, notes: notes.collect() }
    }
}

/// Reply to the page's script.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
enum Reply {
    /// The answer.
    Done {
        /// Answer in a sentence.
        sentence: String,
        /// Answer as HTML.
        html: String,
    },
    /// The answer is being computed.
    Running {
        /// Ticket to show for the next reply.
        ticket: String,
        /// True if it waits for other computations.
        waits: bool,
        /// Number of runs done.
        done: usize,
        /// Number of runs to do; 0 if it is not yet known.
        total: usize,
    },
    /// The form is refused.
    Refused {
        /// Name of the field that must change, if there is one.
        field: Option<String>,
        /// Error message.
        message: String,
    },
    /// There is no answer.
    Failed {
        /// Error message.
        message: String,
    },
}

/// Reply with the form to which it belongs.
#[derive(Debug, Serialize)]
struct ReplyWithForm {
    #[serde(flatten)]
    reply: Reply,
    /// Form of the request, if it contained one.
    form: Option<FormReply>,
}

impl Reply {
    fn from_error(error: &AnswerError) -> Self {
        match error {
            AnswerError::Refused(error) => {
                Self::Refused { field: error.field().map(Field::key), message: page::error_text(error) }
            }
            AnswerError::Stopped | AnswerError::Failed(_) => Self::Failed { message: error.to_string() },
        }
    }

    fn from_result(result: Option<&JobResult>, ticket: &Ticket, job: &Job) -> Self {
        match result {
            Some(Ok(answered)) => Self::from_answer(answered),
            Some(Err(error)) => Self::from_error(error),
            None => Self::Running {
                ticket: ticket.to_string(),
                waits: !job.progress.begun.load(std::sync::atomic::Ordering::Relaxed),
                done: job.progress.done.load(std::sync::atomic::Ordering::Relaxed),
                total: job.progress.total.load(std::sync::atomic::Ordering::Relaxed),
            },
        }
    }

    fn from_answer(answered: &StudyAnswer) -> Self {
        Self::Done { sentence: answered.sentence(), html: answered.summary() }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Done { .. } => StatusCode::OK,
            Self::Running { .. } => StatusCode::ACCEPTED,
            Self::Refused { .. } => StatusCode::BAD_REQUEST,
            Self::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn with_form(self, form: Option<FormReply>) -> Response {
        let status = self.status();
        match serde_json::to_string(&ReplyWithForm { reply: self, form }) {
            Ok(text) => (status, content(JSON, text)).into_response(),
            Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

impl IntoResponse for JobError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::UnknownTicket => StatusCode::NOT_FOUND,
            Self::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = Reply::Failed { message: self.to_string() }.with_form(None);
        *response.status_mut() = status;
        response
    }
}

/// Takes a form from the page's script, and waits for the answer or reports progress.
async fn submit(
    State(shared): State<ServerState>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some(FORM) {
        return failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, &format!("body: expected {FORM}"));
    }
    let body = match body {
        Ok(body) => body,
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            return failure(StatusCode::PAYLOAD_TOO_LARGE, &format!("body: longer than {MAX_BODY} bytes"));
        }
        Err(rejection) => return failure(rejection.status(), "body: cannot be read"),
    };
    let form = match Form::read(form_urlencoded::parse(&body)) {
        Ok(form) => form,
        Err(error) => return Reply::from_error(&error.into()).with_form(None),
    };
    let reply = FormReply::new(&form);
    match shared.jobs.submit(StudyText::new(&form), Instant::now()) {
        Err(error) => error.into_response(),
        Ok(Submission::Answered(answered)) => Reply::from_answer(&answered).with_form(Some(reply)),
        Ok(Submission::Running(ticket, job)) => wait(&shared, ticket, &job, Some(reply)).await,
    }
}

/// Reports the answer or the progress of a computation.
async fn poll(State(shared): State<ServerState>, ticket: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(ticket)) = ticket else { return JobError::UnknownTicket.into_response() };
    let ticket = Ticket::shown(&ticket);
    match shared.jobs.show(&ticket, Instant::now()) {
        Ok(job) => wait(&shared, ticket, &job, None).await,
        Err(error) => error.into_response(),
    }
}

/// Waits for an answer. A page that leaves meanwhile returns its ticket, as does one that receives the answer.
async fn wait(shared: &ServerState, ticket: Ticket, job: &Job, form: Option<FormReply>) -> Response {
    let waiting = TicketGuard::new(Arc::clone(&shared.jobs), ticket.clone());
    let result = job.result(POLL).await;
    let reply = Reply::from_result(result.as_ref(), &ticket, job);
    if result.is_none() {
        waiting.keep();
    }
    reply.with_form(form)
}

/// Returns a ticket.
async fn stop(State(shared): State<ServerState>, ticket: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(ticket)) = ticket else { return JobError::UnknownTicket.into_response() };
    shared.jobs.release(&Ticket::shown(&ticket));
    StatusCode::NO_CONTENT.into_response()
}

async fn download_study(RawQuery(query): RawQuery) -> Response {
    match Form::from_query(&query.unwrap_or_default()) {
        Ok(form) => attachment(TOML, STUDY_NAME, StudyText::new(&form).toml),
        Err(error) => failure(StatusCode::BAD_REQUEST, &page::error_text(&error)),
    }
}

async fn download_results(State(shared): State<ServerState>, RawQuery(query): RawQuery) -> Response {
    match answer_of_query(&shared, query).await {
        Ok(answered) => match answered.json() {
            Ok(json) => attachment(JSON, "results.json", json),
            Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        Err(response) => *response,
    }
}

async fn download_report(State(shared): State<ServerState>, RawQuery(query): RawQuery) -> Response {
    match answer_of_query(&shared, query).await {
        Ok(answered) => attachment(HTML, "report.html", answered.page().html()),
        Err(response) => *response,
    }
}

/// Returns the answer of a link's form, or the response that there is none.
async fn answer_of_query(shared: &ServerState, query: Option<String>) -> Result<Arc<StudyAnswer>, Box<Response>> {
    let failed = |status, message: String| Err(Box::new(failure(status, &message)));
    let form = match Form::from_query(&query.unwrap_or_default()) {
        Ok(form) => form,
        Err(error) => return failed(StatusCode::BAD_REQUEST, page::error_text(&error)),
    };
    match await_answer(shared, &form, DOWNLOAD_PATIENCE).await {
        Ok(Some(Ok(answered))) => Ok(answered),
        Ok(Some(Err(AnswerError::Refused(error)))) => failed(StatusCode::BAD_REQUEST, page::error_text(&error)),
        Ok(Some(Err(error))) => failed(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Ok(None) => failed(
            StatusCode::SERVICE_UNAVAILABLE,
            "the answer is still being computed: try again in some seconds".to_owned(),
        ),
        Err(error) => failed(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// Response with a content of a type.
fn content(kind: &'static str, text: impl Into<Body>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text.into())
}

/// Response that a browser stores as a file.
fn attachment(kind: &'static str, name: &'static str, text: String) -> Response {
    let disposition = format!("attachment; filename=\"{name}\"");
    ([(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_DISPOSITION, disposition)], text).into_response()
}

/// Response with an error message as text.
fn failure(status: StatusCode, message: &str) -> Response {
    (status, content(TEXT, format!("{message}\n"))).into_response()
}

"""The gateway: sessions that outlive their socket, compressed transports, and the opcodes that a bot meets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from aiohttp import WSMsgType, web

from tests.double.payloads import application_payload, guild_event, own_user_payload
from tests.double.world import Json, World

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID_SESSION, HELLO, HEARTBEAT_ACK = 0, 1, 2, 6, 7, 9, 10, 11
_IGNORED_OPS = {3, 4, 8}  # presence, voice state, members: a bot may send them, nothing comes of it here

MESSAGE_CONTENT = 1 << 15
# Which intent brings which event (those that the double dispatches). What stands nowhere here needs none.
_INTENT_OF = {
    **dict.fromkeys(("GUILD_CREATE", "GUILD_UPDATE", "GUILD_DELETE"), 1 << 0),
    **dict.fromkeys(("GUILD_ROLE_CREATE", "GUILD_ROLE_UPDATE", "GUILD_ROLE_DELETE"), 1 << 0),
    **dict.fromkeys(("CHANNEL_CREATE", "CHANNEL_UPDATE", "CHANNEL_DELETE"), 1 << 0),
    **dict.fromkeys(("THREAD_CREATE", "THREAD_UPDATE", "THREAD_DELETE", "THREAD_LIST_SYNC"), 1 << 0),
    **dict.fromkeys(("GUILD_MEMBER_ADD", "GUILD_MEMBER_UPDATE", "GUILD_MEMBER_REMOVE"), 1 << 1),
    **dict.fromkeys(("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "MESSAGE_DELETE_BULK"), 1 << 9),
    **dict.fromkeys(("MESSAGE_REACTION_ADD", "MESSAGE_REACTION_REMOVE"), 1 << 10),
    "TYPING_START": 1 << 11,
}
# After these the session is gone, whoever closed.
_SESSION_ENDS = {1000, 1001, 4004, 4007, 4009, 4010, 4011, 4012, 4013, 4014}
_CLOSE_REASONS = {
    4001: "Unknown opcode.",
    4002: "Error while decoding payload.",
    4003: "Not authenticated.",
    4004: "Authentication failed.",
    4005: "Already authenticated.",
    4007: "Invalid seq.",
    4009: "Session timed out.",
    4010: "Invalid shard.",
    4011: "Sharding required.",
    4013: "Invalid intent(s).",
    4014: "Disallowed intent(s).",
}


_GUILDS_OF_A_SHARD = 2_500


def _guild_of(name: str, data: Json) -> str | None:
    """The guild of an event; None for what is said in private."""
    guild_id = data.get("id") if name in {"GUILD_CREATE", "GUILD_UPDATE", "GUILD_DELETE"} else data.get("guild_id")
    return guild_id if isinstance(guild_id, str) and guild_id.isdigit() else None


class Transport(Protocol):
    """Turns payloads into frames; one for each socket, since a compressed stream has a memory."""

    binary: bool

    def frame(self, text: str, /) -> bytes: ...


class Plain:
    binary = False

    def frame(self, text: str) -> bytes:
        return text.encode()


class ZlibStream:
    binary = True

    def __init__(self) -> None:
        self._deflate = zlib.compressobj()

    def frame(self, text: str) -> bytes:
        return self._deflate.compress(text.encode()) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


class ZstdStream:
    binary = True

    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor()

    def frame(self, text: str) -> bytes:
        return self._compressor.compress(text.encode(), mode=zstd.ZstdCompressor.FLUSH_BLOCK)


_TRANSPORTS: dict[str, Callable[[], Transport]] = {"": Plain, "zlib-stream": ZlibStream, "zstd-stream": ZstdStream}


@dataclass(kw_only=True, slots=True)
class Heartbeat:
    at: float  # the loop's time
    seq: int | None


@dataclass(kw_only=True, slots=True)
class Close:
    code: int
    reason: str


class Socket:
    """One WebSocket. What is sent keeps its order; nothing here waits for the client to read."""

    def __init__(self, ws: web.WebSocketResponse, request: web.Request) -> None:
        self.compress = request.query.get("compress", "")
        self.path = request.path
        self.session: Session | None = None
        self.closed_with: int | None = None
        self._ws = ws
        self._request = request
        self._transport = _TRANSPORTS[self.compress]()
        self._outgoing: asyncio.Queue[str | Close] = asyncio.Queue()
        self._gone = False

    def send(self, payload: Json | str) -> None:
        if not self._gone:
            self._outgoing.put_nowait(payload if isinstance(payload, str) else json.dumps(payload))

    def close(self, code: int) -> None:
        """Close after what was sent before."""
        if not self._gone:
            self.closed_with = code
            self._outgoing.put_nowait(Close(code=code, reason=_CLOSE_REASONS.get(code, "")))

    def abort(self) -> None:
        """Break the connection without a word, as a failing network does."""
        self._gone = True
        if self._request.transport is not None:
            self._request.transport.abort()

    async def flushed(self) -> None:
        """Wait until all that was sent so far is on the wire (or never will be)."""
        await self._outgoing.join()

    async def write(self) -> None:
        """Send what is queued, until the socket goes."""
        try:
            while True:
                item = await self._outgoing.get()
                try:
                    await self._write_one(item)
                finally:
                    self._outgoing.task_done()
        except ConnectionError:
            pass  # the reader notices the same
        finally:
            self._gone = True
            with contextlib.suppress(asyncio.QueueEmpty):
                while True:
                    self._outgoing.get_nowait()
                    self._outgoing.task_done()

    async def _write_one(self, item: str | Close) -> None:
        if isinstance(item, Close):
            await self._ws.close(code=item.code, message=item.reason.encode())
        elif self._transport.binary:
            await self._ws.send_bytes(self._transport.frame(item))
        else:
            await self._ws.send_str(item)


@dataclass(kw_only=True, slots=True)
class Session:
    """What the client identified as. It keeps every event, so that a later socket can resume it."""

    id: str
    identified_with: Json
    events: list[str] = field(default_factory=list[str])
    socket: Socket | None = None

    @property
    def intents(self) -> int:
        return int(self.identified_with["intents"])

    @property
    def shard(self) -> tuple[int, int]:
        """Which shard it is, of how many."""
        shard, of = self.identified_with.get("shard", (0, 1))
        return int(shard), int(of)

    def has(self, guild_id: str | None) -> bool:
        """Whether the events of a guild go here; those of no guild go to shard 0."""
        shard, of = self.shard
        return shard == (0 if guild_id is None else (int(guild_id) >> 22) % of)

    def dispatch(self, name: str, data: Json) -> None:
        seq = len(self.events) + 1
        text = json.dumps({"op": DISPATCH, "t": name, "s": seq, "d": data})
        self.events.append(text)
        if self.socket is not None:
            self.socket.send(text)


class Gateway:
    """Speaks to every connected client, and answers to the control calls of a test."""

    def __init__(self, world: World, changed: Callable[[], None]) -> None:
        self.heartbeat_interval = 41.25  # seconds
        self.ack_heartbeats = True
        self.refuse_identify: int | None = None  # a close code for everyone who identifies
        self.least_shards = 1  # a client that says it has fewer is refused (4011)
        self.identify_every = 0.0  # seconds between two IDENTIFYs of a bucket; real Discord's are 5
        self.too_early = 0  # so many came sooner
        self.identified: list[tuple[float, int]] = []  # each IDENTIFY that was taken: the loop's time, and its shard
        self._identified_at: dict[int, float] = {}  # by bucket
        self.url = ""
        self.heartbeats: list[Heartbeat] = []
        self.identifies: list[Json] = []  # the `d` of each IDENTIFY
        self.resumes: list[Json] = []  # the `d` of each RESUME
        self.connections: list[Socket] = []  # every socket there ever was
        self.sessions: dict[str, Session] = {}
        self._open: list[Socket] = []
        self._world = world
        self._changed = changed

    @property
    def ready(self) -> bool:
        """Whether a client sits at a session, so that events reach it."""
        return any(session.socket is not None for session in self.sessions.values())

    @property
    def connected(self) -> bool:
        return bool(self._open)

    def dispatch(self, name: str, data: Json) -> None:
        """Tell each session what its intents let it know."""
        for session in self.sessions.values():
            intent = _INTENT_OF.get(name, 0)
            if session.has(_guild_of(name, data)) and (not intent or session.intents & intent):
                session.dispatch(name, self._readable(session, name, data))
        self._changed()

    def close(self, code: int) -> None:
        for socket in self._open:
            if code in _SESSION_ENDS:
                self._end_session(socket)
            socket.close(code)

    def drop(self) -> None:
        for socket in list(self._open):
            socket.abort()

    def ask_to_reconnect(self) -> None:
        for socket in self._open:
            socket.send({"op": RECONNECT, "d": None})

    def invalidate(self, *, resumable: bool) -> None:
        for socket in self._open:
            if not resumable:
                self._end_session(socket)
            socket.send({"op": INVALID_SESSION, "d": resumable})

    def forget_sessions(self) -> None:
        """Let every session time out: who comes to resume has to identify."""
        for socket in self._open:
            socket.session = None
        self.sessions.clear()

    async def flushed(self) -> None:
        for socket in list(self._open):
            await socket.flushed()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle one WebSocket from its HELLO to its end."""
        if request.query.get("compress", "") not in _TRANSPORTS:
            return web.Response(status=400, text="unknown compression")
        ws = web.WebSocketResponse(timeout=1.0)
        await ws.prepare(request)
        socket = Socket(ws, request)
        self.connections.append(socket)
        self._open.append(socket)
        writer = asyncio.create_task(socket.write(), name="gateway writer")
        socket.send({"op": HELLO, "d": {"heartbeat_interval": int(self.heartbeat_interval * 1000), "_trace": []}})
        self._changed()
        try:
            async for frame in ws:
                if frame.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                    self._receive(socket, frame.data)
                    self._changed()
        finally:
            self._leave(socket, ws.close_code)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._changed()
        return ws

    def _leave(self, socket: Socket, close_code: int | None) -> None:
        self._open.remove(socket)
        socket.closed_with = socket.closed_with or close_code
        # Without a code (1006) the line broke, and the session waits.
        if socket.closed_with in _SESSION_ENDS:
            self._end_session(socket)
        elif socket.session is not None and socket.session.socket is socket:
            socket.session.socket = None

    def _end_session(self, socket: Socket) -> None:
        if socket.session is not None:
            self.sessions.pop(socket.session.id, None)
            socket.session = None

    def _receive(self, socket: Socket, data: str | bytes) -> None:
        try:
            payload: Any = json.loads(data)
            op: int = payload["op"]
        except (ValueError, KeyError, TypeError):
            socket.close(4002)
            return
        body: Any = payload.get("d")
        if op == HEARTBEAT:
            self._heartbeat(socket, body)
        elif op == IDENTIFY:
            self._identify(socket, body)
        elif op == RESUME:
            self._resume(socket, body)
        elif op not in _IGNORED_OPS:
            socket.close(4001)
        elif socket.session is None:
            socket.close(4003)

    def _heartbeat(self, socket: Socket, seq: int | None) -> None:
        self.heartbeats.append(Heartbeat(at=asyncio.get_running_loop().time(), seq=seq))
        if self.ack_heartbeats:
            socket.send({"op": HEARTBEAT_ACK})

    def _identify(self, socket: Socket, body: Json) -> None:
        self.identifies.append(body)
        self._world.session_starts_left -= 1
        if socket.session is not None:
            socket.close(4005)
        elif self.refuse_identify is not None:
            socket.close(self.refuse_identify)
        elif body["token"] != self._world.token:
            socket.close(4004)
        elif refused := self._refused_shard(*body.get("shard", (0, 1))):
            socket.close(refused)
        elif self._is_too_early(body.get("shard", (0, 1))[0]):
            self.too_early += 1
            socket.send({"op": INVALID_SESSION, "d": False})
        else:
            session = Session(id=f"session{len(self.identifies)}", identified_with=body, socket=socket)
            self.sessions[session.id] = session
            socket.session = session
            self._welcome(session)

    def _refused_shard(self, shard: int, of: int) -> int | None:
        """The close code for a shard that Discord does not take."""
        if not 0 <= shard < of:
            return 4010
        own = sum((int(guild_id) >> 22) % of == shard for guild_id in self._world.guilds)
        return 4011 if of < self.least_shards or own > _GUILDS_OF_A_SHARD else None

    def _is_too_early(self, shard: int) -> bool:
        now, bucket = asyncio.get_running_loop().time(), shard % self._world.max_concurrency
        if now < self._identified_at.get(bucket, -math.inf) + self.identify_every:
            return True
        self._identified_at[bucket] = now
        self.identified.append((now, shard))
        return False

    def _welcome(self, session: Session) -> None:
        guilds = [guild for guild in self._world.guilds.values() if session.has(guild.id)]
        session.dispatch(
            "READY",
            {
                "v": 10,
                "user": own_user_payload(self._world.bot),
                "guilds": [{"id": guild.id, "unavailable": True} for guild in guilds],
                "session_id": session.id,
                "session_type": "normal",
                "resume_gateway_url": self.url + "/resume",
                "shard": list(session.shard),
                "application": {
                    key: value for key, value in application_payload(self._world).items() if key in {"id", "flags"}
                },
                "private_channels": [],
                "relationships": [],
                "user_settings": {},
            },
        )
        if session.intents & _INTENT_OF["GUILD_CREATE"]:
            for guild in guilds:
                session.dispatch("GUILD_CREATE", guild_event(self._world, guild))

    def _resume(self, socket: Socket, body: Json) -> None:
        self.resumes.append(body)
        session = self.sessions.get(body["session_id"])
        if body["token"] != self._world.token:
            socket.close(4004)
        elif session is None:
            socket.send({"op": INVALID_SESSION, "d": False})
        elif not 0 <= body["seq"] <= len(session.events):
            socket.close(4007)
        else:
            if session.socket is not None:
                session.socket.session = None  # the new socket takes over; the old one may still be closing
            socket.session = session
            session.socket = socket
            for missed in session.events[body["seq"] :]:
                socket.send(missed)
            session.dispatch("RESUMED", {"_trace": []})

    def _readable(self, session: Session, name: str, data: Json) -> Json:
        """Empty what the privileged intent would show, but for the bot's own messages and those that mention it."""
        if name not in {"MESSAGE_CREATE", "MESSAGE_UPDATE"} or session.intents & MESSAGE_CONTENT:
            return data
        mentioned = {user["id"] for user in cast("list[Json]", data["mentions"])}
        if self._world.bot.id in mentioned | {data["author"]["id"]}:
            return data
        return data | {"content": "", "embeds": [], "attachments": [], "components": []}

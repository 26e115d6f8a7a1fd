"""Submits a task and follows it to its end: a whole client of the runtime protocol.

    python3 client.py SOCKET TASK_ID PROMPT [DIRECTORY]

Exits 0 when the task completed, 1 when it failed, 5 when it was cancelled, 6 when it was interrupted.
"""
import base64, json, os, socket, struct, sys, time

path, task_id, prompt, cwd = (sys.argv[1:] + [os.getcwd()])[:4]
EXITS = {'TaskCompleted': 0, 'TaskFailed': 1, 'TaskCancelled': 5, 'TaskInterrupted': 6}
state = {'cursor': None, 'tasks': {}, 'shown': 0}     # what a real client keeps on disk, together

def exact(sock, size):
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError('the daemon closed the connection')
        data.extend(part)
    return data

def receive(sock):
    size, = struct.unpack('>I', exact(sock, 4))
    if not 0 < size <= 1024 * 1024:
        raise ValueError('invalid frame length')
    return json.loads(exact(sock, size))

def send(sock, value):
    data = json.dumps(value).encode('utf-8')
    sock.sendall(struct.pack('>I', len(data)) + data)

def apply(event):
    if event['eventType'] == 'task_changed':
        state['tasks'][event['payload']['taskId']] = event['payload']
    state['cursor'] = event['sequenceNumber']

def follow(sock):
    """One connection: returns the exit status, or raises when the connection ends."""
    pieces = []
    send(sock, {'type': 'hello', 'hello': {'clientId': f'client.py-{task_id}', 'versions': [3],
                                           'resumeAfter': state['cursor']}})
    if receive(sock)['type'] != 'welcome':
        raise SystemExit('the daemon speaks no version 3')
    # The same id never runs twice: sending it again after a lost connection is safe.
    send(sock, {'type': 'command', 'id': 'submit', 'command': {
        'version': 1, 'type': 'submit', 'task_id': task_id, 'prompt': prompt, 'cwd': cwd}})
    while True:
        message = receive(sock)
        kind = message['type']
        if kind == 'heartbeat':
            send(sock, {'type': 'pong', 'sequence': message['sequence']})
        elif kind == 'command_result' and not message['ok'] and 'exists' not in message['error']:
            raise SystemExit(message['error'])
        elif kind in ('snapshot_chunk', 'event_chunk'):
            pieces.append(base64.b64decode(message[kind.replace('chunk', 'data')]))
            if message['chunk_index'] + 1 < message['chunk_count']:
                continue
            document, pieces = json.loads(b''.join(pieces)), []
            if kind == 'event_chunk':
                apply(document)
            else:
                state.update(cursor=document['lastSequence'], tasks=document['tasks'])
        elif kind == 'event':
            apply(message['event'])
        if kind in ('snapshot_chunk', 'event_chunk', 'event'):
            send(sock, {'type': 'ack', 'sequence': state['cursor']})   # applied, so acknowledged
            status = state['tasks'].get(task_id, {}).get('status')
            if status != state['shown'] and status:
                state['shown'] = status
                print(status, flush=True)
            if status in EXITS:
                print(*state['tasks'][task_id]['logTail'], sep='\n')
                return EXITS[status]

for attempt in range(50):
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(60)          # a daemon that is there says something every 15 seconds
            sock.connect(path)
            sys.exit(follow(sock))
    except (OSError, EOFError):          # not there, or gone: come back with the cursor
        time.sleep(0.2)
sys.exit(3)

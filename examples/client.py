"""Submits a task and follows it to its end: a whole client of the runtime protocol.

    python3 client.py SOCKET TASK_ID PROMPT [DIRECTORY]

Exits 0 when the task completed, 1 when it failed, 5 when it was cancelled, 6 when it was interrupted.
"""
import base64, json, os, socket, struct, sys, time

path, task_id, prompt, cwd = (sys.argv[1:] + [os.getcwd()])[:4]
EXITS = {'TaskCompleted': 0, 'TaskFailed': 1, 'TaskCancelled': 5, 'TaskInterrupted': 6}
state = {'cursor': None, 'tasks': {}, 'shown': None}     # what a real client keeps on disk, together

def receive(stream):
    header = stream.read(4)
    size = struct.unpack('>I', header)[0] if len(header) == 4 else 0
    data = stream.read(size)
    if size == 0 or len(data) < size:
        raise EOFError('the daemon closed the connection')
    return json.loads(data)

def send(sock, value):
    data = json.dumps(value).encode('utf-8')
    sock.sendall(struct.pack('>I', len(data)) + data)

def apply(kind, document):
    if kind == 'snapshot_chunk':
        state.update(cursor=document['lastSequence'], tasks=document['tasks'])
        return
    if document['eventType'] == 'task_changed':
        state['tasks'][document['payload']['taskId']] = document['payload']
    state['cursor'] = document['sequenceNumber']

def follow(sock):
    """One connection: returns the exit status, or raises when the connection ends."""
    stream, pieces = sock.makefile('rb'), []
    send(sock, {'type': 'hello', 'hello': {'clientId': f'client.py-{task_id}', 'versions': [3],
                                           'resumeAfter': state['cursor']}})
    if receive(stream)['type'] != 'welcome':
        raise SystemExit('the daemon speaks no version 3')
    # The same id never runs twice: sending it again after a lost connection is safe.
    send(sock, {'type': 'command', 'id': 'submit', 'command': {
        'version': 1, 'type': 'submit', 'task_id': task_id, 'prompt': prompt, 'cwd': cwd}})
    while True:
        message = receive(stream)
        kind = message['type']
        if kind == 'heartbeat':
            send(sock, {'type': 'pong', 'sequence': message['sequence']})
        elif kind == 'command_result' and not message['ok'] and 'exists' not in message['error']:
            raise SystemExit(message['error'])
        elif kind in ('snapshot_chunk', 'event_chunk'):
            pieces.append(base64.b64decode(message[kind.replace('chunk', 'data')]))
            if message['chunk_index'] + 1 == message['chunk_count']:
                apply(kind, json.loads(b''.join(pieces)))
                pieces = []
        elif kind == 'event':
            apply(kind, message['event'])
        if not pieces and kind in ('snapshot_chunk', 'event_chunk', 'event'):
            send(sock, {'type': 'ack', 'sequence': state['cursor']})   # applied, so acknowledged
            task = state['tasks'].get(task_id, {'status': None})
            if task['status'] != state['shown']:
                state['shown'] = task['status']
                print(task['status'], flush=True)
            if task['status'] in EXITS:
                print(*task['logTail'], sep='\n')
                return EXITS[task['status']]

for attempt in range(50):
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(60)          # a daemon that is there says something every 15 seconds
            sock.connect(path)
            sys.exit(follow(sock))
    except (OSError, EOFError):          # not there, or gone: come back with the cursor
        time.sleep(0.2)
sys.exit(3)

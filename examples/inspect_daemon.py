import json, socket, struct, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
    sock.settimeout(15)
    sock.connect(sys.argv[1])
    def send(value):
        data = json.dumps(value).encode('utf-8')
        sock.sendall(struct.pack('>I', len(data)) + data)
    def exact(size):
        data = bytearray()
        while len(data) < size:
            part = sock.recv(size - len(data))
            if not part:
                raise EOFError('daemon disconnected')
            data.extend(part)
        return data
    def receive():
        size, = struct.unpack('>I', exact(4))
        if not 0 < size <= 1024 * 1024:
            raise ValueError('invalid frame length')
        return json.loads(exact(size))
    send({'type': 'hello', 'hello': {'clientId': 'docs-inspection',
          'versions': [3], 'resumeAfter': None}})
    welcome = receive()
    if welcome['type'] != 'welcome' or welcome['welcome']['version'] != 3:
        raise RuntimeError(welcome)
    send({'type': 'command', 'id': 'list-1',
          'command': {'version': 1, 'type': 'list'}})
    for _ in range(10000):
        message = receive()
        if message['type'] == 'heartbeat':
            send({'type': 'pong', 'sequence': message['sequence']})
        elif message['type'] == 'command_result' and message['id'] == 'list-1':
            print(json.dumps(message, indent=2))
            if not message['ok']:
                raise SystemExit(1)
            break
    else:
        raise RuntimeError('no list result within message bound')

# Watches over one scratch PostgreSQL, as the user who runs it. Standard input is a pipe that nobody writes to:
# it closes when the test drops its server, or when the test's process dies. Then everything must go.
folder=$1
file=$folder/data/postmaster.pid

# A number alone may belong to another process by now.
ours() {
    case $(readlink "/proc/$1/cwd") in
    "$folder" | "$folder"/*) true ;;
    *) false ;;
    esac
}

# Processes that work in the folder: the server's, and what makes its files.
inside() {
    find /proc/[0-9]*/cwd -maxdepth 0 \( -lname "$folder" -o -lname "$folder/*" \) | cut -d / -f 3
}

read -r _

# It would hear of no signal but one.
stopped() {
    grep -q '^State:.T' "/proc/$1/status"
}

# At once, but in order: it frees its shared memory.
if read -r server <"$file" && ours "$server"; then
    kill -QUIT "$server"
    tries=0
    while ours "$server" && ! stopped "$server" && [ "$tries" -lt 250 ]; do
        sleep 0.02
        tries=$((tries + 1))
    done
fi

tries=0
left=$(inside)
while [ -n "$left" ] && [ "$tries" -lt 100 ]; do
    for process in $left; do
        kill -KILL "$process"
    done
    sleep 0.02
    tries=$((tries + 1))
    left=$(inside)
done

# Killed, it has left a segment behind, whose key and number stand in the seventh line.
if [ -f "$file" ]; then
    segment=$(sed -n '7s/^ *[0-9]* *//p' "$file")
    ipcrm -m "$segment"
fi

rm -rf "$folder"

# Functions of the entry scripts of the containers ovs and zone: one pod at a time on a node, and
# daemons that are started again.

# log TEXT… prints a line with the time and the name of the script.
log() { echo "$(date -u +%FT%T.%3NZ) ${0##*/}: $*"; }

# lock FILE waits until no other pod holds the lock. The kernel releases it when the last process of
# this container has ended, however it ended. The pod that is next in line holds FILE.next, which
# tells others that the holder is being replaced.
lock() {
	trap 'kill "$!" 2>/dev/null; exit 0' TERM
	mkdir -p "${1%/*}"
	exec 9>>"$1" 8>>"$1.next"
	log "waiting for $1"
	flock 8 & wait "$!" # in the background: a shell handles signals only while it waits
	flock 9 & wait "$!"
	exec 8>&-
	log "locked $1"
}

# supervise COMMAND… runs a daemon, and starts it again whenever it ends. On TERM, it ends the
# daemon with the command in $stop, if there is one.
supervise() {
	trap '${stop:-kill "$!"} 2>/dev/null; wait; exit 0' TERM
	while :; do
		begin=$(date +%s)
		"$@" &
		wait "$!"
		log "$1 ended with status $?"
		[ $(($(date +%s) - begin)) -gt 1 ] || sleep 0.2
	done
}

# stop_all PID… ends supervised daemons one after the other, and the script.
stop_all() {
	for pid; do
		kill "$pid"
		wait "$pid"
	done
	log "ended"
	exit 0
}

# database FILE SCHEMA creates a database, or converts it to the schema of another version. When
# that fails, as on a full disk, it waits: the content of the database is worth more than a quick
# start.
database() {
	mkdir -p "${1%/*}"
	until prepare "$1" "$2"; do
		log "WAITING: $1 stays unchanged until its disk has space, or the error above is corrected"
		sleep 5 & wait "$!"
	done
}

# prepare is one attempt of database.
prepare() {
	if [ -s "$1" ]; then
		case $(ovsdb-tool needs-conversion "$1" "$2") in
		no) return ;;
		yes)
			log "converting $1"
			if ovsdb-tool convert "$1" "$2" || { repair "$1" && ovsdb-tool convert "$1" "$2"; }; then
				return
			fi
			# A newer version wrote values that this schema rejects, unless the disk is full.
			cp "$1" "$1.copy" || { rm -f "$1.copy"; return 1; }
			rm "$1.copy" ;;
		esac
		# If the disk and the schema can be read, the file is the problem. Its writers write
		# everything again, and a node without a network is worse.
		cat "$1" >/dev/null && ovsdb-tool schema-version "$2" >/dev/null || return
		log "$1 cannot be read or converted: renaming it to $1.broken"
		mv --backup=numbered "$1" "$1.broken"
	fi
	rm -f "$1.new"
	ovsdb-tool create "$1.new" "$2" && mv "$1.new" "$1"
}

# repair lets ovsdb-server remove an incomplete last record of a database, as after a power failure.
# ovsdb-tool does not convert such a file.
repair() {
	! ovsdb-tool show-log "$1" >/dev/null 2>&1 || return
	log "repairing $1"
	ovsdb-server "$1" --remote="punix:$1.repair" --unixctl="$1.ctl" -vconsole:warn -vsyslog:off \
		-vfile:off --run="ovs-appctl --target=$1.ctl ovsdb-server/compact"
}

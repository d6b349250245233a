# Read by the entry scripts of the containers ovs and zone: one pod at a time, and daemons that come back.

# The name of the script begins each of its lines in the log.
say() { echo "$(date -u +%FT%T.%3NZ) ${0##*/}: $*"; }

# alone FILE waits until no other pod has the lock. It is let go when this container's last process has ended, however
# that happens. Who is next in line has FILE.next, so that others can know that the holder is being replaced.
alone() {
	trap 'kill "$!" 2>/dev/null; exit 0' TERM
	mkdir -p "${1%/*}"
	exec 9>>"$1" 8>>"$1.next"
	say "waits for $1"
	flock 8 & wait "$!" # in the background: a shell hears signals only while it waits
	flock 9 & wait "$!"
	exec 8>&-
	say "goes on"
}

# keep COMMAND… runs a daemon, and again whenever it ends. On TERM it ends the daemon, by the command in $stop if there is
# one.
keep() {
	trap '${stop:-kill "$!"} 2>/dev/null; wait; exit 0' TERM
	while :; do
		begin=$(date +%s)
		"$@" &
		wait "$!"
		say "$1 ended: $?"
		[ $(($(date +%s) - begin)) -gt 1 ] || sleep 0.2
	done
}

# end PID… ends what keep runs, one after the other.
end() {
	for pid; do
		kill "$pid"
		wait "$pid"
	done
	say "has ended"
	exit 0
}

# database FILE SCHEMA makes a database, or brings it to another version's schema. When that fails, as on a full disk, it waits: what
# there is is worth more than a start.
database() {
	mkdir -p "${1%/*}"
	until prepared "$1" "$2"; do
		say "WAITS: $1 stays as it is until there is room on its disk (or what is wrong above is put right)"
		sleep 5 & wait "$!"
	done
}

# prepared is one try of database.
prepared() {
	if [ -s "$1" ]; then
		case $(ovsdb-tool needs-conversion "$1" "$2") in
		no) return ;;
		yes)
			say "converts $1"
			if ovsdb-tool convert "$1" "$2" || { mended "$1" && ovsdb-tool convert "$1" "$2"; }; then return; fi
			# A newer version wrote values that this schema rejects, unless the disk is full.
			cp "$1" "$1.room" || { rm -f "$1.room"; return 1; }
			rm "$1.room" ;;
		esac
		# Is it the file? Whoever wrote the database writes it again: a node without its network helps nobody.
		cat "$1" >/dev/null && ovsdb-tool schema-version "$2" >/dev/null || return
		say "$1 cannot be read or converted and is put aside"
		mv --backup=numbered "$1" "$1.broken"
	fi
	rm -f "$1.new"
	ovsdb-tool create "$1.new" "$2" && mv "$1.new" "$1"
}

# mended lets ovsdb-server mend a database whose end is torn, as after a power failure. ovsdb-tool converts none such.
mended() {
	! ovsdb-tool show-log "$1" >/dev/null 2>&1 || return
	say "mends $1"
	ovsdb-server "$1" --remote="punix:$1.mend" --unixctl="$1.ctl" -vconsole:warn -vsyslog:off -vfile:off \
		--run="ovs-appctl --target=$1.ctl ovsdb-server/compact"
}

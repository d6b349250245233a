package image_test

import (
	"os"
	"strings"
	"testing"
	"time"
)

// onDisk runs a script beside a disk of 300 kB at /disk, with the functions of daemons.sh, a schema
// at $S, an older one at /older, and one at /wider that accepts more values.
func onDisk(t *testing.T) func(script string) string {
	t.Helper()
	_, n := node(t)
	sh(t, n, `mkdir /disk; mount -t tmpfs -o size=300k tmpfs /disk
		sed '0,/"version": "[0-9.]*"/s//"version": "8.0.0"/' /usr/share/openvswitch/vswitch.ovsschema >/older
		sed 's/"maxInteger": 63}/"maxInteger": 99}/' /older >/wider`)
	return func(script string) string {
		t.Helper()
		return sh(t, n, `. /usr/local/lib/hairpin/daemons.sh; S=/usr/share/openvswitch/vswitch.ovsschema; cd /disk
			written() { ovsdb-tool transact "$1" '["Open_vSwitch",{"op":"insert","table":"Open_vSwitch","row":{"system_type":"'$2'"}}]' >/dev/null; }
			rows() { ovsdb-tool query "$1" '["Open_vSwitch",{"op":"select","table":"Open_vSwitch","where":[],"columns":["system_type"]}]'; }
			full() { head -c 1M /dev/zero >fill 2>/dev/null || true; }
			`+script)
	}
}

// TestEntryDatabase checks that no data is lost, whatever the state of the database's file and
// disk.
func TestEntryDatabase(t *testing.T) {
	do := onDisk(t)
	for _, c := range []struct{ name, script, want string }{
		{"new", `database /disk/a.db $S; ls`, "a.db"},
		{"converted",
			`ovsdb-tool create b.db /older; written b.db x; database /disk/b.db $S >/dev/null; rows b.db; ls b.*`,
			`[{"rows":[{"system_type":"x"}]}]` + "\nb.db"},
		{"torn", `ovsdb-tool create c.db /older; written c.db x
			ovsdb-tool transact c.db '["Open_vSwitch",{"op":"update","table":"Open_vSwitch","where":[],"row":{"system_version":"y"}}]' >/dev/null; truncate -s -5 c.db
			database /disk/c.db $S >/dev/null 2>&1; rows c.db; ovsdb-tool needs-conversion c.db $S; ls c.*`, `[{"rows":[{"system_type":"x"}]}]` + "\nno\nc.db"},
		{"empty", `: >d.db; database /disk/d.db $S; ovsdb-tool needs-conversion d.db $S; ls d.*`, "no\nd.db"},
		{"with values that the schema rejects",
			`ovsdb-tool create k.db /wider; written k.db x
			ovsdb-tool transact k.db '["Open_vSwitch",{"op":"insert","table":"Queue","row":{"dscp":80}}]' >/dev/null
			database /disk/k.db $S >/dev/null 2>&1; rows k.db; ovsdb-tool needs-conversion k.db $S; rows k.db.broken; ls k.*; rm k.*`,
			`[{"rows":[]}]` + "\nno\n" + `[{"rows":[{"system_type":"x"}]}]` + "\nk.db\nk.db.broken"},
		{"unreadable, twice",
			`for i in 1 2; do echo $i >e.db; database /disk/e.db $S >/dev/null 2>&1; done; cat e.db.broken.~1~ e.db.broken; ls e.*`,
			"1\n2\ne.db\ne.db.broken\ne.db.broken.~1~"},
		{"no schema",
			`ovsdb-tool create f.db $S; cp f.db /f.db; prepare /disk/f.db /none >/dev/null 2>&1 || cmp f.db /f.db && ls f.*`, "f.db"},
		{"full, old", `ovsdb-tool create g.db /older; written g.db x; cp g.db /g.db; full
			prepare /disk/g.db $S >/dev/null 2>&1 || prepare /disk/g.db $S >/dev/null 2>&1 || cmp g.db /g.db; ls g.*; rm fill`, "g.db"},
		{"full, new",
			`full; prepare /disk/h.db $S >/dev/null 2>&1 || ls h.db 2>&1 || rm fill; database /disk/h.db $S; ls h.*`,
			"ls: cannot access 'h.db': No such file or directory\nh.db"},
	} {
		if got := do(c.script); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestEntryDiskSpace checks that a new pod does not replace the old one while the disk is full.
func TestEntryDiskSpace(t *testing.T) {
	_, n := node(t)
	start(t, n, "one", "ovs")
	bridge(t, n)
	sh(t, n,
		`mkdir /tmp/disk; mount -t tmpfs -o size=300k tmpfs /tmp/disk; cp /etc/openvswitch/conf.db /tmp/disk; head -c 1M /dev/zero >/tmp/disk/fill || true`)
	if err := n.StartDaemon(t.Context(), "disk-space", "/usr/local/lib/hairpin/disk-space", "/tmp/none.db",
		"/tmp/disk/conf.db"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "disk-space reports that it waits", func() bool {
		log, err := os.ReadFile(n.LogFile("disk-space"))
		return err == nil && strings.Contains(string(log), "WAITING for space on the disk of /tmp/disk/conf.db")
	})
	sh(t, n, "rm /tmp/disk/fill")
	t.Logf("it ends %v after there is space",
		eventually(t, "disk-space ends", func() bool { return n.Pid("disk-space") == 0 }).Round(time.Millisecond))
	if got := sh(t, n, "cmp /tmp/disk/conf.db /etc/openvswitch/conf.db; ls -A /tmp/disk"); got != "conf.db" {
		t.Errorf("it left %q", got)
	}
}

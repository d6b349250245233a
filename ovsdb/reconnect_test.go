package ovsdb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/ovsdb"
)

// again waits until the client has reached sync for the nth time.
func again(tb testing.TB, c *ovsdb.Client, n int) {
	tb.Helper()
	eventually(tb, fmt.Sprintf("connection %d", n), func() bool { return c.Connected() && c.Stats().Connects == n })
}

// TestRestart: a server that restarts with its content causes no change in the mirror. It has no
// history, so it sends all rows again.
func TestRestart(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, tables()...)
	fill(t, c, 500)
	before := c.View()
	s.kill()
	eventually(t, "the loss is noticed", func() bool { return !c.Connected() })
	if !c.Synced() || c.View() != before || c.Err() == nil {
		t.Error(c.Synced(), c.Err())
	}
	done := make(chan error)
	go func() { // waits for the server
		_, err := c.Transact(timeout(t), ovsdb.Update(ovsdb.NBGlobal{Name: "back"}, "name").All())
		done <- err
	}()
	eventually(t, "an attempt in vain", func() bool { return errors.Is(c.Err(), syscall.ENOENT) })
	s.start()
	start := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("took %v to come back", time.Since(start))
	ch := c.View().Since(before)
	if len(ch) != 1 || ch[0].Table != "NB_Global" || len(ch[0].Changed) != 1 || ch[0].Deleted != nil {
		t.Errorf("%+v", ch)
	}
	if st := c.Stats(); st.Connects != 2 || st.Resumed != 0 {
		t.Errorf("%+v", st)
	}
	equal(t, c, open(t, s, tables()...))
}

// TestChangedWhileAway: Since returns exactly the changes made while the client was not connected.
func TestChangedWhileAway(t *testing.T) {
	s := startServer(t, nbSchema)
	p := startProxy(t, pass(s, asItIs, asItIs))
	c := openAt(t, p.endpoint, tables()...)
	writer := open(t, s)
	fill(t, writer, 300)
	if err := c.WaitFor(timeout(t), func(v ovsdb.View) bool { return ovsdb.Len[LoadBalancer](v) == 300 }); err != nil {
		t.Fatal(err)
	}
	before := c.View()
	p.use(func(net.Conn) {}) // no connection is forwarded
	s.restart()
	gone := rows[LoadBalancer](c)[17]
	transact(t, writer, ovsdb.Delete("Load_Balancer").Row(gone.UUID))
	p.use(pass(s, asItIs, asItIs))
	again(t, c, 2)
	ch := c.View().Since(before)
	if len(ch) != 3 || ch[0].Changed != nil || len(ch[0].Deleted) != 1 || ch[0].Deleted[0] != gone.UUID {
		t.Errorf("%+v", ch)
	}
	equal(t, c, open(t, s, tables()...))
}

// TestWiped: an empty server empties the mirror, in one step.
func TestWiped(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, tables()...)
	fill(t, c, 200)
	before := c.View()
	s.wipe(nbSchema)
	again(t, c, 2)
	ch := c.View().Since(before)
	if len(ch) != 4 || len(ch[0].Deleted) != 200 || ch[0].Changed != nil || ovsdb.Len[LogicalSwitch](c.View()) != 0 {
		t.Errorf("%+v", ch)
	}
	transact(t, c, ovsdb.Insert(ovsdb.NBGlobal{Name: "new"}))
	if got := ovsdb.First[ovsdb.NBGlobal](c.View()); got == nil || got.Name != "new" {
		t.Error(got)
	}
}

// TestResume: a server with a history sends only what changed since the last transaction that the
// client has.
func TestResume(t *testing.T) {
	s := startCluster(t, nbSchema)
	p := startProxy(t, pass(s, asItIs, asItIs))
	c := openAt(t, p.endpoint, tables()...)
	fill(t, c, 300)
	before := c.View()
	writer := open(t, s)
	for n := 2; n < 5; n++ {
		// The server forgets the oldest transactions when they are larger than the database, but
		// not this one.
		transact(t, c, ovsdb.Update(ovsdb.NBGlobal{Name: fmt.Sprint(n)}, "name").All())
		cut(t, c, p)
		gone := rows[LoadBalancer](c)[n]
		transact(t, writer, ovsdb.Delete("Load_Balancer").Row(gone.UUID),
			ovsdb.Mutate("NB_Global", ovsdb.Add("nb_cfg", 1)).All())
		p.use(pass(s, asItIs, asItIs))
		again(t, c, n)
		if v := c.View(); ovsdb.Get[LoadBalancer](v, gone.UUID) != nil || ovsdb.First[ovsdb.NBGlobal](v).NBCfg != n-1 {
			t.Errorf("round %d: the change is not there", n)
		}
	}
	if st := c.Stats(); st.Resumed != 3 {
		t.Errorf("%+v", st)
	}
	if ch := c.View().Since(before); len(ch) != 4 || len(ch[0].Deleted) != 3 || ch[0].Changed != nil {
		t.Errorf("%+v", ch)
	}
	equal(t, c, open(t, s, tables()...))
}

// cut closes the client's connection and blocks new ones.
func cut(t *testing.T, c *ovsdb.Client, p *proxy) {
	t.Helper()
	p.use(func(net.Conn) {})
	p.hangUp()
	eventually(t, "the loss is noticed", func() bool { return !c.Connected() })
}

// TestGarbage: any invalid message of a peer causes an error with the reason, and the client keeps
// trying.
func TestGarbage(t *testing.T) {
	s := startServer(t, nbSchema)
	fill(t, open(t, s), 20)
	corrupt := func(old, new string) func(net.Conn) {
		return pass(s, asItIs, func(b []byte) []byte {
			if !bytes.Contains(b, []byte("[false,")) { // the response to monitor_cond_since
				return b
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		})
	}
	for want, serve := range map[string]func(net.Conn){
		"connection lost: EOF":                      func(net.Conn) {},
		"not JSON-RPC: want '{', have 'S'":          say("SSH-2.0-OpenSSH_9.2\r\n"),
		"not JSON-RPC: want '{', have '\\x00'":      say("\x00\x00\x00"),
		"read message: byte 1: want '\"', have 'x'": say(`{x}`),
		"read message: byte 208: nested more than 200 deep": say(`{"error":` + strings.Repeat("[", 1000) +
			strings.Repeat("]", 1000) + "}"),
		`neither a method nor an id of ours: "{\"id\":\"x\"}"`: say(`{"id":"x"}`),
		"answer to request 7, which was not made":              say(`{"id":7,"result":[]}`),
		"read update3: not expected":                           say(`{"method":"update3","params":[],"id":null}`),
		"read monitor_canceled: not expected":                  say(`{"method":"monitor_canceled","params":["x"],"id":null}`),
		"get_schema: byte 0: want":                             say(`{"id":1,"error":null}`),
		"cannot unmarshal array into Go value":                 say(`{"id":1,"result":[1,2],"error":null}`),
		"get_schema: refused for no known reason: \"[3]\"":     say(`{"id":1,"result":null,"error":[3]}`),
		"has no table Load_Balancer":                           say(`{"id":1,"result":{},"error":null}`),
		`unknown update "initiel"`:                             corrupt(`"initial"`, `"initiel"`),
		"vips: byte 421: want a map, have \"mop\"":             corrupt(`"vips":["map"`, `"vips":["mop"`),
		"vips: byte 425: array is too long":                    corrupt(`"vips":["map",`, `"vips":["map",[],`),
		"name: byte":                                           corrupt(`"name":"Service_`, `"name":0,"x":"`),
		"table \"Load_balancer\" was not asked for":            corrupt(`"Load_Balancer":{"`, `"Load_balancer":{"`),
		"want a UUID, have":                                    corrupt(`"uuid"`, `"uuld"`),
	} {
		p := startProxy(t, serve)
		c, err := ovsdb.Open(ovsdb.Config{Endpoint: p.endpoint, Database: nb, Tables: tables(),
			MaxBackoff: 40 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		ok := false
		for start := time.Now(); !ok && time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
			if err := c.Err(); err != nil {
				last = err.Error()
				ok = strings.Contains(last, want)
			}
		}
		if !ok || c.Synced() {
			t.Errorf("%s, want %s", last, want)
		}
		n := p.count()
		eventually(t, "another attempt", func() bool { return p.count() > n })
		p.use(pass(s, asItIs, asItIs))
		if err := c.WaitSynced(timeout(t)); err != nil || ovsdb.Len[LoadBalancer](c.View()) != 20 {
			t.Error(err)
		}
		c.Close()
	}
}

// TestGarbageLater: after an unreadable update, or one for an unknown row, the client reads all
// rows again.
func TestGarbageLater(t *testing.T) {
	s := startCluster(t, nbSchema)
	writer := open(t, s)
	fill(t, writer, 20)
	for i, change := range [][2]string{{`"modify"`, `"madify"`}, {`"map"`, `"nap"`},
		{`{"Load_Balancer":{"`, `{"Load_Balancer":{"00000000-0000-0000-0000-000000000000":{"modify":{}},"`}} {
		p := startProxy(t, pass(s, asItIs, func(b []byte) []byte {
			if !bytes.Contains(b, []byte(`"update3"`)) {
				return b
			}
			return bytes.Replace(b, []byte(change[0]), []byte(change[1]), 1)
		}))
		c := openAt(t, p.endpoint, tables()...)
		lb := *rows[LoadBalancer](c)[0]
		lb.VIPs = map[string]string{fmt.Sprint(i): "x"}
		transact(t, writer, ovsdb.Update(lb))
		again(t, c, 2)
		if c.Stats().Resumed != 0 {
			t.Errorf("%v: resumed after an error", change)
		}
		equal(t, c, open(t, s, tables()...))
	}
}

// TestSilence: the client detects a stopped server by its silence, and uses it again when it
// continues.
func TestSilence(t *testing.T) {
	s := startServer(t, nbSchema)
	c, err := ovsdb.Open(ovsdb.Config{Endpoint: s.endpoint, Database: nb, Probe: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.WaitSynced(timeout(t)); err != nil {
		t.Fatal(err)
	}
	s.cmd.Process.Signal(syscall.SIGSTOP)
	eventually(t, "the silence is noticed", func() bool {
		return !c.Connected() && strings.Contains(c.Err().Error(), "no answer to an echo request for 50ms")
	})
	s.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "it is used again", c.Connected)
}

// TestUnanswered: after a transaction was abandoned, the client sends nothing until its outcome is
// known.
func TestUnanswered(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, tables()...)
	insert := func(ctx context.Context, name string) error {
		_, err := c.Transact(ctx, ovsdb.Insert(LoadBalancer{Name: name}))
		return err
	}
	s.cmd.Process.Signal(syscall.SIGSTOP)
	soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := insert(soon, "given up"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if c.Settled() || !c.Connected() {
		t.Errorf("settled %v, connected %v", c.Settled(), c.Connected())
	}
	for range 3 {
		soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := insert(soon, "not sent"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() { done <- insert(timeout(t), "sent later") }()
	s.cmd.Process.Signal(syscall.SIGCONT)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, row := range rows[LoadBalancer](c) {
		names = append(names, row.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"given up", "sent later"}) || !c.Settled() {
		t.Errorf("settled %v; %v", c.Settled(), names)
	}
}

// connection is a row of Connection, which sets how often a server probes.
type connection struct {
	UUID            ovsdb.UUID `ovsdb:"_uuid"`
	Target          string     `ovsdb:"target"`
	InactivityProbe *int       `ovsdb:"inactivity_probe"` // milliseconds
}

func (connection) Table() string { return "Connection" }

// global is a row of NB_Global with a column that NBGlobal lacks.
type global struct {
	UUID        ovsdb.UUID   `ovsdb:"_uuid"`
	Connections []ovsdb.UUID `ovsdb:"connections"`
}

func (global) Table() string { return "NB_Global" }

// TestEcho: the client answers the server's probes; the server disconnects a peer that does not.
func TestEcho(t *testing.T) {
	s := startServer(t, nbSchema, "db:OVN_Northbound,NB_Global,connections")
	path := s.file("probing")
	id := ovsdb.NamedUUID("c")
	transact(t, open(t, s),
		ovsdb.Insert(connection{UUID: id, Target: "punix:" + path, InactivityProbe: new(1000)}),
		ovsdb.Insert(global{Connections: []ovsdb.UUID{id}}))
	var mute net.Conn
	eventually(t, "the server listens", func() bool { // the socket's file exists before that
		var err error
		mute, err = net.Dial("unix", path)
		return err == nil
	})
	defer mute.Close()
	c := dial(t, "unix:"+path, ovsdb.Probe(time.Hour))
	mute.SetDeadline(time.Now().Add(10 * time.Second))
	if text, err := io.ReadAll(mute); err != nil || !strings.Contains(string(text), `"echo"`) {
		t.Fatalf("%s %v", text, err)
	}
	// c was connected before, and as silent.
	if err := c.Echo(timeout(t)); err != nil || c.Err() != nil {
		t.Error(err, c.Err())
	}
}

// TestTCP: the same over TCP, IPv4 and IPv6.
func TestTCP(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Logf("no %s here: %v", host, err)
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		startServer(t, nbSchema, fmt.Sprintf("ptcp:%d:%s", port, host))
		c := openAt(t, fmt.Sprintf("tcp:%s:%d", host, port), tables()...)
		fill(t, c, 10)
		if ovsdb.Len[LoadBalancer](c.View()) != 10 {
			t.Error(host)
		}
	}
}

// TestClose: no goroutine is left, in any state of the client; pending calls end.
func TestClose(t *testing.T) {
	s := startServer(t, nbSchema)
	writer := open(t, s)
	transact(t, writer, ovsdb.Insert(ovsdb.NBGlobal{}))
	writer.Close()
	var clients []*ovsdb.Client
	for _, endpoint := range []string{s.endpoint, "unix:/nowhere", startProxy(t, say("")).endpoint,
		startProxy(t, say("{")).endpoint, startProxy(t, say("x")).endpoint} {
		c, err := ovsdb.Open(ovsdb.Config{Endpoint: endpoint, Database: nb, Tables: tables()})
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	if err := clients[0].WaitSynced(timeout(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // so that it does not answer
		t.Fatal(err)
	}
	defer s.cmd.Process.Signal(syscall.SIGCONT)
	done := make(chan error)
	for _, c := range clients {
		go func() {
			_, err := c.Transact(context.Background(), ovsdb.Insert(ovsdb.NBGlobal{Name: "never"}))
			done <- err
		}()
	}
	eventually(t, "all calls are under way", func() bool {
		var b bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&b, 2)
		return strings.Count(b.String(), "\nhairpin/ovsdb.(*Client).Transact(") == len(clients)
	})
	for _, c := range clients {
		c.Close()
		c.Close()
	}
	for range clients {
		if err := <-done; err == nil || !strings.Contains(err.Error(), "closed") {
			t.Error(err)
		}
	}
	eventually(t, "no goroutine is left", func() bool {
		var b bytes.Buffer
		pprof.Lookup("goroutine").WriteTo(&b, 1)
		return !strings.Contains(b.String(), "hairpin/ovsdb.(")
	})
}

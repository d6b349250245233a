package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/retry"
)

// ServiceChecks answers the health checks of load balancers on spec.healthCheckNodePort of Services
// with external traffic policy Local: a node without a local endpoint must get no connections
// (KEP-1669). Only one goroutine may call its methods.
type ServiceChecks struct {
	node    string
	log     *slog.Logger
	healthy func() bool // of the data plane
	wg      sync.WaitGroup
	ports   map[uint16]*checkPort
}

// NewServiceChecks returns the ServiceChecks of a node. healthy reports whether its data plane is
// healthy.
func NewServiceChecks(node string, healthy func() bool, log *slog.Logger) *ServiceChecks {
	return &ServiceChecks{node: node, log: log, healthy: healthy, ports: map[uint16]*checkPort{}}
}

// Counts returns the number of ports that listen, and of those that cannot.
func (c *ServiceChecks) Counts() (listening, failed int) {
	for _, p := range c.ports {
		if p.close != nil {
			listening++
		} else {
			failed++
		}
	}
	return listening, failed
}

// checkPort is one port.
type checkPort struct {
	close func() // nil: it does not listen
	err   error  // why it does not listen
	again retry.Backoff

	mu    sync.Mutex
	state LocalState
}

// LocalState is the answer for one port: the number of local endpoints of a Service.
type LocalState struct {
	service   cluster.Owner
	endpoints int
}

// LocalStates returns the local endpoints of the Services with a health check port. Of two Services
// with the same port, the first by name gets it. As in the plan, the address of an endpoint without
// a node name determines its node.
func LocalStates(frontends []*cluster.Frontend, node *cluster.Node) (map[uint16]LocalState, []cluster.Problem) {
	all, problems := map[uint16]LocalState{}, []cluster.Problem(nil)
	for _, f := range frontends {
		port := f.HealthCheckNodePort
		if port == 0 || !f.ExternalLocal {
			continue
		}
		s, taken := all[port]
		if taken && s.service != f.Owner {
			p := checkProblem(f.Owner, fmt.Sprintf("port %d belongs to %s", port, s.service))
			if len(problems) == 0 || problems[len(problems)-1] != p {
				problems = append(problems, p)
			}
			continue
		}
		// The pods of all ports and families are the same ones: the maximum counts each pod once.
		local := map[netip.Addr]bool{}
		for i := range f.Backends {
			if b := &f.Backends[i]; b.Ready && node.HasEndpoint(b) {
				local[b.Addr] = true
			}
		}
		all[port] = LocalState{f.Owner, max(s.endpoints, len(local))}
	}
	return all, problems
}

func checkProblem(service cluster.Owner, message string) cluster.Problem {
	return cluster.Problem{Owner: service, Field: "spec.healthCheckNodePort", Message: message}
}

// Set adds and removes listeners to match want. It returns problems for ports that it cannot listen
// on, and the time until it must be called again, or 0 if only a change requires it.
func (c *ServiceChecks) Set(ctx context.Context, now time.Time,
	want map[uint16]LocalState) (problems []cluster.Problem, again time.Duration) {
	for number, p := range c.ports {
		if _, wanted := want[number]; !wanted {
			p.stop()
			delete(c.ports, number)
		}
	}
	for number, s := range want {
		p := c.ports[number]
		if p == nil {
			p = &checkPort{again: retry.Backoff{Min: retry.Last}}
			c.ports[number] = p
		}
		p.mu.Lock()
		p.state = s
		p.mu.Unlock()
		if p.close == nil && p.again.Due(now) {
			c.listen(ctx, now, number, p)
		}
		if p.close == nil {
			problems = append(problems, checkProblem(s.service, fmt.Sprintf("node %s: %v", c.node, p.err)))
			again = retry.Sooner(again, p.again.Wait(now))
		}
	}
	slices.SortFunc(problems, cluster.Problem.Compare)
	return problems, again
}

func (c *ServiceChecks) listen(ctx context.Context, now time.Time, number uint16, p *checkPort) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(int(number))) // all addresses of both families
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // without the address, which says less than the field
		}
		p.err = fmt.Errorf("port %d cannot be listened on: %w", number, err)
		p.again.Failed(now)
		return
	}
	serving, stop := context.WithCancel(ctx)
	p.close, p.err = stop, nil
	c.wg.Go(func() {
		if err := ServeHTTP(serving, l, p.handler(c.healthy)); err != nil {
			c.log.Warn("health checks of load balancers", "port", number, "error", err)
		}
	})
}

func (p *checkPort) stop() {
	if p.close != nil {
		p.close()
		p.close = nil
	}
}

// Stop closes all listeners.
func (c *ServiceChecks) Stop() {
	for _, p := range c.ports {
		p.stop()
	}
	c.wg.Wait()
}

// checkBody is the answer to a load balancer, with kube-proxy's names.
type checkBody struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

func (p *checkPort) handler(healthy func() bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		s := p.state
		p.mu.Unlock()
		body := checkBody{LocalEndpoints: s.endpoints, ServiceProxyHealthy: healthy()}
		body.Service.Namespace, body.Service.Name = s.service.Namespace, s.service.Name
		code := http.StatusServiceUnavailable
		if s.endpoints > 0 && body.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(s.endpoints))
		writeJSON(w, code, body)
	})
}

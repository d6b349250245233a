package ui

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"hairpin/cluster"
	"hairpin/inspect"
	"hairpin/ui/page"
)

// agents are the reports of the agents, as they were read last.
type agents struct {
	mu   sync.Mutex // one request asks the agents, the others wait for it
	last *page.Health
	read time.Time
}

// answerWithin is the time that an agent has for its report, if no option sets it.
const answerWithin = 5 * time.Second

// health returns the reports of the agents; nil if none is asked.
func (u *ui) health(ctx context.Context) *page.Health {
	if u.client != nil || u.o.Dir != "" || u.c.Process.Manifests != "" {
		return nil
	}
	u.agents.mu.Lock()
	defer u.agents.mu.Unlock()
	if u.agents.last != nil && time.Since(u.agents.read) < freshFor {
		return u.agents.last
	}
	o := inspect.StatusOptions{All: u.o.EveryNode, ClusterOptions: u.o.cluster(u.c)}
	if o.Timeout == 0 {
		o.Timeout = answerWithin
	}
	h := &page.Health{Nodes: map[string]page.NodeHealth{}}
	if s, err := inspect.ReadStatus(ctx, u.c, o); err != nil {
		h.Error = err.Error()
	} else {
		for i := range s.Nodes {
			n := &s.Nodes[i]
			h.Nodes[n.Node] = page.NodeHealth{Report: n.Report, State: n.State(), Error: n.Error,
				Unhealthy: n.Unhealthy()}
		}
		if c := s.Controller; c != nil {
			h.Controller = c.Holder
			if h.Error = c.Error; h.Error != "" {
				h.Error = "Controller: " + h.Error
			}
		}
	}
	if ctx.Err() == nil { // an error of a request that was canceled is not for other readers
		u.agents.last, u.agents.read = h, time.Now()
	}
	return h
}

// list serves a page that lists objects of the cluster.
func (u *ui) list(w http.ResponseWriter, q *http.Request,
	render func(s *cluster.Snapshot, find string, problems []string) ([]byte, error)) {
	s := u.clusterOrFail(w, q)
	if s == nil {
		return
	}
	html, err := render(s, strings.TrimSpace(q.FormValue("find")), problemLines(s.Problems))
	u.send(w, http.StatusOK, html, err)
}

func (u *ui) home(w http.ResponseWriter, q *http.Request) {
	u.list(w, q, func(s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
		return page.Home(u.frame, s, u.health(q.Context()), find, problems)
	})
}

func (u *ui) services(w http.ResponseWriter, q *http.Request) {
	u.list(w, q, func(s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
		return page.Services(u.frame, s, find, problems)
	})
}

func (u *ui) egress(w http.ResponseWriter, q *http.Request) {
	u.list(w, q, func(s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
		return page.Egress(u.frame, s, u.health(q.Context()), find, problems)
	})
}

func (u *ui) policies(w http.ResponseWriter, q *http.Request) {
	u.list(w, q, func(s *cluster.Snapshot, find string, problems []string) ([]byte, error) {
		return page.Policies(u.frame, s, find, problems)
	})
}

func (u *ui) problems(w http.ResponseWriter, q *http.Request) {
	u.list(w, q, func(_ *cluster.Snapshot, find string, problems []string) ([]byte, error) {
		return page.Problems(u.frame, u.health(q.Context()), find, problems)
	})
}

package ops

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hairpin/report"
)

// Meters are the metrics of one process: histograms and counters that events update, and values
// that are read at each scrape.
type Meters struct {
	registry   *prometheus.Registry
	histograms map[string]*prometheus.HistogramVec
	counters   map[string]*prometheus.CounterVec
	values     map[string]value
	collect    func(Put)
}

type value struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// maxScrapes is the number of scrapes that are served at the same time. Further ones get a 503:
// each scrape requests values from the node's daemons.
const maxScrapes = 8

// Put sets the value of a metric with its labels.
type Put func(name string, v float64, labels ...string)

// NewMeters returns the metrics of an agent or a controller. Every scrape calls collect, from any
// goroutine.
func NewMeters(process string, collect func(Put)) *Meters {
	m := &Meters{registry: prometheus.NewRegistry(), histograms: map[string]*prometheus.HistogramVec{},
		counters: map[string]*prometheus.CounterVec{}, values: map[string]value{}, collect: collect}
	for _, x := range Metrics() {
		if x.Of != process && x.Of != ofBoth {
			continue
		}
		switch {
		case x.Kind == histogram:
			m.histograms[x.Name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: x.Name, Help: x.Help,
				Buckets: buckets(x.Name)}, x.Labels)
			m.registry.MustRegister(m.histograms[x.Name])
		case eventCounter(x.Name):
			m.counters[x.Name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: x.Name, Help: x.Help}, x.Labels)
			m.registry.MustRegister(m.counters[x.Name])
		default:
			kind := prometheus.GaugeValue
			if x.Kind == counter {
				kind = prometheus.CounterValue
			}
			m.values[x.Name] = value{prometheus.NewDesc(x.Name, x.Help, x.Labels, nil), kind}
		}
	}
	m.registry.MustRegister(m, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Describe implements prometheus.Collector.
func (m *Meters) Describe(c chan<- *prometheus.Desc) {
	for _, v := range m.values {
		c <- v.desc
	}
}

// Collect implements prometheus.Collector: it reads the values.
func (m *Meters) Collect(c chan<- prometheus.Metric) {
	put := func(name string, v float64, labels ...string) {
		x := m.values[name]
		c <- prometheus.MustNewConstMetric(x.desc, x.kind, v, labels...)
	}
	put("hairpin_build_info", 1, report.Version(), runtime.Version())
	m.collect(put)
}

// Took adds a duration to a histogram.
func (m *Meters) Took(name string, d time.Duration, labels ...string) {
	m.histograms[name].WithLabelValues(labels...).Observe(d.Seconds())
}

// Count adds one to a counter that events update.
func (m *Meters) Count(name string, labels ...string) {
	m.counters[name].WithLabelValues(labels...).Inc()
}

// Handler serves /metrics.
func (m *Meters) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	return mux
}

// One returns 1 for true, and 0 for false.
func One(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

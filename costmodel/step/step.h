#pragma once
#include <cstddef>

#include "costmodel/step/composition.h"
#include "costmodel/step/prediction.h"
#include "costmodel/step/stage_pieces.h"

namespace foldwise::costmodel {

/// A run's step, composed once: what its prediction, reports, trace and reserved memory are read off.
struct Step {
  StepContext context;  ///< Refers to model, options and hardware, which must outlive the step.
  ModelKinds kinds;
  StageLayout layout;
  Composition composition;

  [[nodiscard]] const ScheduleShape& shape() const { return composition.times.shape; }
  /// Of a chunk of a rank, as Composition::index.
  [[nodiscard]] const StageContent& content(std::size_t chunk_and_rank) const {
    return layout.stages[stage_of(shape(), layout.stages.size(), chunk_and_rank)];
  }
};

/// The options must satisfy planner/rules; sizes that do not divide are a bug of the caller. Layers are split as the
/// options' pipeline_layout says, or evenly.
[[nodiscard]] Step compose_step(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware);

/// `with_detail`: with StagePrediction::parts, DetailEntry lines and the step's end.
[[nodiscard]] Prediction predict(const Step& step, bool with_detail = true);

}  // namespace foldwise::costmodel
